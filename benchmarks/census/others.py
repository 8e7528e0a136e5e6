"""Architectures of other libraries, each tiny and random: timm, diffusers, open_clip, sentence-transformers and more.

The packages are kept apart (`make apart-census`); only a census puts their folder on its path.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.census.build import Made, stir

SEQUENCES = 3


def _pictures(size: int = 32, channels: int = 3) -> Tensor:
    return torch.randn(SEQUENCES, channels, size, size, generator=torch.Generator().manual_seed(1))


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def _ids(width: int = 11, vocabulary: int = 96) -> Tensor:
    return torch.randint(5, vocabulary, (SEQUENCES, width), generator=torch.Generator().manual_seed(3))


def _of_one(model: nn.Module, field: str, value: Tensor) -> Made:
    return Made(stir(model.float().eval()), {field: value}, value)


def _of_dict(model: nn.Module, batch: dict[str, Any]) -> Made:
    return Made(stir(model.float().eval()), batch, batch)


# timm -----------------------------------------------------------------------------------------------------------------

# One model for each module file of timm 1.0.30 that has attention, the smallest of it.
TIMM: dict[str, str] = {
    "beit": "beit_base_patch16_224",
    "byoanet": "halonet_h1",
    "byobnet": "mobileone_s1",
    "cait": "cait_xxs24_224",
    "coat": "coat_tiny",
    "convit": "convit_tiny",
    "cpubone": "cpubone_nano",
    "crossvit": "crossvit_tiny_240",
    "csatv2": "csatv2",
    "cspnet": "cs3darknet_focus_s",
    "davit": "davit_tiny",
    "deepseek_vit": "deepseek_vit_412m",
    "deit": "deit_tiny_patch16_224",
    "edgenext": "edgenext_xx_small",
    "efficientformer": "efficientformer_l1",
    "efficientformer_v2": "efficientformerv2_s0",
    "efficientvit_msra": "efficientvit_m0",
    "eva": "vit_tiny_patch16_dinov3_qkvb",
    "gcvit": "gcvit_xxtiny",
    "gemma4_vit": "gemma4_vit_167m",
    "hiera": "hiera_tiny_224",
    "hieradet_sam2": "sam2_hiera_tiny",
    "iformer": "iformer_t",
    "levit": "levit_128s",
    "lowformer": "lowformer_b0",
    "maxxvit": "maxvit_pico_rw_256",
    "mobilenetv5": "mobilenetv5_base",
    "mobilevit": "mobilevit_xxs",
    "mvitv2": "mvitv2_tiny",
    "naflexvit": "naflexvit_base_patch16_gap",
    "nest": "nest_tiny",
    "nextvit": "nextvit_small",
    "nfnet": "nf_regnet_b0",
    "pit": "pit_ti_224",
    "pvt_v2": "pvt_v2_b0",
    "qwen3_vit": "qwen3_vit_88m",
    "sknet": "skresnet18",
    "swiftformer": "swiftformer_xs",
    "swin_transformer": "swin_tiny_patch4_window7_224",
    "swin_transformer_v2": "swinv2_tiny_window8_256",
    "swin_transformer_v2_cr": "swinv2_cr_tiny_224",
    "tiny_vit": "tiny_vit_5m_224",
    "tnt": "tnt_s_legacy_patch16_224",
    "twins": "twins_svt_small",
    "visformer": "visformer_tiny",
    "vision_transformer": "vit_tiny_patch16_224",
    "vision_transformer_hybrid": "vit_tiny_r_s16_p8_224",
    "vision_transformer_relpos": "vit_srelpos_small_patch16_224",
    "vision_transformer_sam": "samvit_base_patch16_224",
    "vitamin": "vitamin_small_224",
    "volo": "volo_d1_224",
    "vovnet": "ese_vovnet19b_slim_dw",
    "xcit": "xcit_nano_12_p8_224",
}

# Tried in this order: the first that builds and runs is taken.
_SMALLER: tuple[dict[str, Any], ...] = (
    {"img_size": 64, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 5},
    {"img_size": 64, "embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 5},
    {"embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 5},
    {
        "img_size": 64,
        "embed_dim": 16,
        "depths": (2, 2, 2, 2),
        "num_heads": (1, 2, 4, 8),
        "window_size": 2,
        "num_classes": 5,
    },
    {"img_size": 64, "num_classes": 5},
    {"img_size": 128, "num_classes": 5},
    {"num_classes": 5},
    {},
)


def _timm(name: str) -> Made:
    import timm

    met = ""
    for options in _SMALLER:
        try:
            model = timm.create_model(name, pretrained=False, **options).eval()
            size = options.get("img_size") or model.default_cfg["input_size"][-1]
            pictures = _pictures(size, model.default_cfg["input_size"][0])
            with torch.no_grad():
                model(pictures)
        except Exception as error:
            met = f"{type(error).__name__}: {error}"
            continue
        return _of_one(model, "x", pictures)
    raise RuntimeError(met)


# diffusers ------------------------------------------------------------------------------------------------------------


def _dit() -> Made:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8, patch_size=2,
        num_embeds_ada_norm=10,
    )  # fmt: skip
    labels = torch.tensor([1, 4, 7])
    return _of_dict(
        model, {"hidden_states": _pictures(8, 4), "timestep": torch.tensor([10, 200, 700]), "class_labels": labels}
    )


def _pixart() -> Made:
    from diffusers import PixArtTransformer2DModel

    model = PixArtTransformer2DModel(
        num_attention_heads=4, attention_head_dim=8, in_channels=4, num_layers=2, cross_attention_dim=32, sample_size=8,
        patch_size=2, caption_channels=16, use_additional_conditions=False,
    )  # fmt: skip
    batch = {"hidden_states": _pictures(8, 4), "encoder_hidden_states": _normal(SEQUENCES, 7, 16),
             "timestep": torch.tensor([10, 200, 700])}  # fmt: skip
    return _of_dict(model, batch)


def _sd3() -> Made:
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=3, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=16, caption_projection_dim=32, pooled_projection_dim=16, out_channels=4,
        pos_embed_max_size=8,
    )  # fmt: skip
    batch = {"hidden_states": _pictures(8, 4), "encoder_hidden_states": _normal(SEQUENCES, 7, 16),
             "pooled_projections": _normal(SEQUENCES, 16), "timestep": torch.tensor([10, 200, 700])}  # fmt: skip
    return _of_dict(model, batch)


def _flux() -> Made:
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    places = torch.zeros(16, 3)
    places[:, 1], places[:, 2] = torch.arange(16) // 4, torch.arange(16) % 4
    batch = {
        "hidden_states": _normal(SEQUENCES, 16, 4), "encoder_hidden_states": _normal(SEQUENCES, 7, 32),
        "pooled_projections": _normal(SEQUENCES, 32), "timestep": torch.tensor([0.1, 0.5, 0.9]), "img_ids": places,
        "txt_ids": torch.zeros(7, 3),
    }  # fmt: skip
    return _of_dict(model, batch)


# open_clip, sentence-transformers -------------------------------------------------------------------------------------


def _open_clip() -> Made:
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    vision = CLIPVisionCfg(layers=2, width=32, head_width=8, patch_size=8, image_size=32)
    text = CLIPTextCfg(context_length=11, vocab_size=100, width=32, heads=4, layers=2)
    return _of_dict(CLIP(32, vision, text), {"image": _pictures(32), "text": _ids()})


def _sentences() -> Made:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizer

    texts = ["the cat sat on the mat", "a dog ran", "the dog sat on a cat and ran"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({word for text in texts for word in text.split()})]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "vocab.txt").write_text("\n".join(words))
        BertTokenizer(str(Path(folder) / "vocab.txt")).save_pretrained(folder)
        config = BertConfig(
            vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
        )
        BertModel(config).save_pretrained(folder)
        model = SentenceTransformer(modules=[part := Transformer(folder), Pooling(part.get_word_embedding_dimension())])
    model = stir(model.float().eval())
    return Made(model, {"input": dict(model.tokenize(texts))}, texts)


# x-transformers, vit-pytorch ------------------------------------------------------------------------------------------


def _x_decoder() -> Made:
    from x_transformers import Decoder, TransformerWrapper

    model = TransformerWrapper(
        num_tokens=96, max_seq_len=16, attn_layers=Decoder(dim=32, depth=3, heads=4, attn_dim_head=8)
    )
    return _of_one(model, "x", _ids())


def _x_encoder() -> Made:
    from x_transformers import Encoder, TransformerWrapper

    layers = Encoder(dim=32, depth=3, heads=4, attn_dim_head=8, rotary_pos_emb=True)
    return _of_one(TransformerWrapper(num_tokens=96, max_seq_len=16, attn_layers=layers), "x", _ids())


def _vit_pytorch(file: str, name: str, **options: Any) -> Made:
    from importlib import import_module

    plain = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 3, "heads": 4, "mlp_dim": 48}
    return _of_one(getattr(import_module(f"vit_pytorch.{file}"), name)(**{**plain, **options}), "img", _pictures(32))


# Code in the manner of nanoGPT ----------------------------------------------------------------------------------------


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            one.view(batch, tokens, self.heads, -1).transpose(1, 2) for one in self.c_attn(x).split(width, dim=2)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, tokens, width))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), _Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A decoder as people write it by hand."""

    def __init__(self, width: int = 32, heads: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(96, width),
                "wpe": nn.Embedding(16, width),
                "h": nn.ModuleList(_Block(width, heads) for _ in range(depth)),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, 96, bias=False)

    def forward(self, idx: Tensor) -> Tensor:
        """Logits (batch, tokens, vocabulary)."""
        x = self.transformer["wte"](idx) + self.transformer["wpe"](torch.arange(idx.shape[1]))
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))


OTHERS: dict[str, Callable[[], Made]] = {
    "diffusers/DiT": _dit,
    "diffusers/PixArt": _pixart,
    "diffusers/SD3": _sd3,
    "diffusers/Flux": _flux,
    "open_clip/CLIP": _open_clip,
    "sentence-transformers/BERT": _sentences,
    "x-transformers/Decoder": _x_decoder,
    "x-transformers/Encoder": _x_encoder,
    "vit-pytorch/ViT": lambda: _vit_pytorch("vit", "ViT"),
    "vit-pytorch/SimpleViT": lambda: _vit_pytorch("simple_vit", "SimpleViT"),
    "vit-pytorch/DeepViT": lambda: _vit_pytorch("deepvit", "DeepViT"),
    "by hand/nanoGPT": lambda: _of_one(GPT(), "idx", _ids()),
}


def cases() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Every architecture here, by library and name."""
    for file, name in TIMM.items():
        yield f"timm/{file}", lambda name=name: _timm(name)
    yield from OTHERS.items()
