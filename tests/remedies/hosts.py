"""The tiny models that every remedy is tried on, and how each is fed: whole, padded, packed, token by token."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn

from unsmooth import networks

BATCH, TOKENS, DIM, LAYERS, VOCAB, PAD = 2, 8, 32, 3, 50, 1
Kind = Literal["encoder", "decoder", "pair", "vision", "vectors"]
Side = Literal["right", "left"]
SPECIAL = {f"{name}_token_id": 2 for name in ("bos", "eos", "cls", "sep")}


@dataclass(frozen=True)
class TestHost:
    """A tiny model.

    Args:
        name: Shown by pytest and in the matrix.
        build: Makes it, with any weights.
        kind: What it reads: token ids (encoder, decoder; a pair reads a fixed source text too), pixels or vectors.
        causal: Whether a token sees only those before it.
        paddings: The sides on which it can be padded.
        counts_pads: Whether it finds positions by its own count of padding tokens, so that none may be given.
        batch_first: Whether vectors are (batch, tokens, dim).
        family: Whether `make test` runs it: one host of each family.
        own: Whether it is a network of unsmooth's.
        pixels: What a vision model calls its images.
        packs: Whether it tells packed rows apart by their positions.
        memory: Whether it reads vectors of another stack too, by cross-attention.
        sound: Whether the source of a pair is sound.
        read: Takes (batch, tokens, ...) out of what it returns, all that a parameter of it can change.
    """

    __test__ = False

    name: str
    build: Callable[[], nn.Module]
    kind: Kind
    causal: bool = False
    paddings: tuple[Side, ...] = ("right", "left")
    counts_pads: bool = False
    batch_first: bool = True
    family: bool = False
    own: bool = False
    pixels: str = "pixel_values"
    packs: bool = True
    memory: bool = False
    sound: bool = False
    read: Callable[[Any], Tensor] = lambda found: found[0]

    def __reduce__(self) -> Any:
        return _by_name, (self.name,)  # to another process, where it is built anew

    @property
    def hugging_face(self) -> bool:
        """Whether it is a model of transformers."""
        return self.kind != "vectors" and not self.own and self.pixels == "pixel_values"

    @property
    def cached(self) -> bool:
        """Whether it decodes token by token."""
        return self.kind == "decoder" and not self.own

    def model(self, seed: int = 0) -> Any:
        """The plain model: weights large enough that no branch is near nothing and no norm near the identity."""
        return copy.deepcopy(_model(self, seed))

    def inputs(self, rows: int = BATCH, tokens: int = TOKENS, seed: int = 0) -> Tensor:
        """Token ids, pixels or vectors (batch first), without padding."""
        generator = torch.Generator().manual_seed(seed)
        if self.kind == "vision":
            return torch.randn(rows, 3, 8, 8, generator=generator)
        if self.kind == "vectors":
            return torch.randn(rows, tokens, DIM, generator=generator)
        return torch.randint(5, VOCAB, (rows, tokens), generator=generator)

    def call(self, inputs: Tensor, real: Tensor | None = None) -> dict[str, Any]:
        """Keyword arguments of a forward pass; `real` (batch, tokens) is False for padding."""
        if self.kind == "vision":
            return {self.pixels: inputs}
        if self.kind == "vectors":
            return self._vectors(inputs, real)
        if self.kind == "pair":
            return self._pair(inputs, real)
        if real is None:
            return {"input_ids": inputs}
        padded = {"input_ids": inputs.where(real, PAD), "attention_mask": real.long()}
        if not self.counts_pads:
            padded["position_ids"] = (real.long().cumsum(1) - 1).clamp(min=0)
        return padded

    def _pair(self, inputs: Tensor, real: Tensor | None) -> dict[str, Any]:
        call: dict[str, Any] = {"input_ids": torch.arange(7, 13).expand(len(inputs), -1)}
        if self.sound:
            frames = torch.randn(1, 4, 12, generator=torch.Generator().manual_seed(3))
            call = {"input_features": frames.expand(len(inputs), -1, -1)}
        if real is None:
            return {**call, "decoder_input_ids": inputs}
        return {**call, "decoder_input_ids": inputs.where(real, PAD), "decoder_attention_mask": real.long()}

    def _vectors(self, inputs: Tensor, real: Tensor | None) -> dict[str, Any]:
        call: dict[str, Any] = {"src": inputs if self.batch_first else inputs.transpose(0, 1)}
        if self.causal:
            call["mask"] = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
            call["is_causal"] = True
        if real is not None:
            call["src_key_padding_mask"] = torch.zeros(real.shape).masked_fill(~real, float("-inf"))
        return self._with_memory(call, len(inputs)) if self.memory else call

    def _with_memory(self, call: dict[str, Any], rows: int) -> dict[str, Any]:
        """What torch's decoder calls the same, and what its encoder would give: the same for every row."""
        words = {"src": "tgt", "mask": "tgt_mask", "is_causal": "tgt_is_causal"}
        words["src_key_padding_mask"] = "tgt_key_padding_mask"
        call["src"] = call["src"].contiguous()
        memory = torch.randn(6, 1, DIM, generator=torch.Generator().manual_seed(3)).expand(-1, rows, -1).contiguous()
        return {"memory": memory, **{words[name]: found for name, found in call.items()}}

    def output(self, model: nn.Module, call: dict[str, Any]) -> Tensor:
        """What the model makes of it, (batch, tokens, dim or vocabulary)."""
        with step_by_step() if self.kind == "vectors" else contextlib.nullcontext():
            found = model(**call)
        found = found if isinstance(found, Tensor) else self.read(found)
        return found if self.batch_first else found.transpose(0, 1)


def _by_name(name: str) -> TestHost:
    return BY_NAME[name]


@contextlib.contextmanager
def step_by_step() -> Iterator[None]:
    """Torch's encoder runs a layer as one fused call where it has no hooks; that rounds otherwise."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@functools.cache
def _model(host: TestHost, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = host.build().eval()
    generator = torch.Generator().manual_seed(1 + seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape, generator=generator))
    return model


def _hf(
    name: str, suffix: str = "Model", pooled: bool = False, of: str | None = None, **options: Any
) -> Callable[[], nn.Module]:
    sizes = {"hidden_size": DIM, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 48}
    tokens = {"vocab_size": VOCAB, "max_position_embeddings": 40, "pad_token_id": PAD, **SPECIAL}
    drops = ("hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop")
    without = dict.fromkeys((*drops, "attention_dropout", "hidden_dropout", "classifier_dropout_prob"), 0.0)

    def build() -> nn.Module:
        config = getattr(transformers, f"{name}Config")(**(sizes | tokens | without | options))
        # A pooler would be a part of the model that no loss here reaches.
        pooler = {"add_pooling_layer": False} if pooled else {}
        return getattr(transformers, f"{of or name}{suffix}")(config, **pooler)

    return build


def _vision(name: str) -> Callable[[], nn.Module]:
    return _hf(name, pooled=True, image_size=8, patch_size=4)


def _swin() -> nn.Module:
    """Two stages: the second has half as many tokens a side, and one window for all of them."""
    sizes = {"image_size": 8, "patch_size": 1, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4}
    config = transformers.SwinConfig(mlp_ratio=1.5, drop_path_rate=0.0, **sizes)
    return transformers.SwinModel(config, add_pooling_layer=False)


def _whisper() -> nn.Module:
    sizes: dict[str, Any] = {"d_model": DIM, "num_mel_bins": 4, "max_source_positions": 6, "max_target_positions": 40}
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_layers": LAYERS, f"{stack}_attention_heads": 4, f"{stack}_ffn_dim": 48}
    special = {**SPECIAL, "pad_token_id": PAD, "decoder_start_token_id": 2, "vocab_size": VOCAB}
    return transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**sizes, **special))


def _timm() -> nn.Module:
    """A stand-in for timm's, which is tried itself where it is installed: tests/models/timm_checks.py."""
    from tests.models.timm_entries import VisionTransformer

    return VisionTransformer(heads=2, qk_norm=True, scaled=True)


def _with_pooled(found: Any) -> Tensor:
    """A norm of the class token alone is a part of the model too."""
    return torch.cat([found.last_hidden_state, found.pooler_output[:, None]], dim=1)


def _torch(batch_first: bool, norm_first: bool) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(DIM, 4, 48, 0.0, batch_first=batch_first, norm_first=norm_first)
        # As users build it: with nested tensors where torch would use them.
        return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=batch_first and not norm_first)

    return build


def _torch_decoder(norm_first: bool) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        # Tokens first, as torch's default has it. Its attention reads the rest turned, and then rounds by whether
        # weights need gradients, which those that a remedy computes do not in evaluation.
        layer = nn.TransformerDecoderLayer(DIM, 4, 48, 0.0, norm_first=norm_first)
        return nn.TransformerDecoder(layer, LAYERS)

    return build


def _own(config: type[networks.Config], **options: Any) -> Callable[[], nn.Module]:
    sizes = {"depth": LAYERS, "dim": DIM, "heads": 4, "hidden": 48}
    text = {} if config is networks.ViTConfig else {"vocabulary": VOCAB, "length": 40}
    return lambda: networks.build(config(**sizes, **text, **options))


_IMAGE = {"image_size": 8, "patch_size": 4}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
_T5 = {"d_model": DIM, "d_kv": 8, "d_ff": 48, "num_layers": LAYERS, "num_heads": 4, "dropout_rate": 0.0}
_DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
_FALCON = {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 48}
_OLD_FALCON = {"new_decoder_architecture": False, "ffn_hidden_size": 48}
_ALIBI = {**_OLD_FALCON, "parallel_attn": False, "multi_query": False, "alibi": True, "bias": True}
# All of them for every token: which ones a router chooses, and how an expert rounds, may change by rounding.
_EXPERTS = {"num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 3}
_CROSSED: dict[str, Any] = {"causal": True, "paddings": ("right",), "batch_first": False, "memory": True}
_CRAMMED = {"activation": "geglu", "qkv_bias": False, "mlp_bias": False, "positions": "scaled_sinusoidal"}
_OWN_TEXT: dict[str, Any] = {"own": True, "counts_pads": True, "paddings": ("right",)}
_OWN_CAUSAL: dict[str, Any] = {**_OWN_TEXT, "causal": True}


HOSTS: tuple[TestHost, ...] = (
    TestHost("bert", _hf("Bert", pooled=True), "encoder", family=True),
    TestHost("roberta", _hf("Roberta", pooled=True), "encoder", counts_pads=True),
    TestHost("mpnet", _hf("MPNet", pooled=True), "encoder", counts_pads=True),
    TestHost("albert", _hf("Albert", pooled=True, embedding_size=16), "encoder"),
    TestHost("vit", _vision("ViT"), "vision", paddings=(), family=True),
    TestHost("deit", _vision("DeiT"), "vision", paddings=()),
    TestHost("gpt2", _hf("GPT2", "LMHeadModel"), "decoder", causal=True, family=True),
    TestHost("neox_parallel", _hf("GPTNeoX", "ForCausalLM"), "decoder", causal=True),
    TestHost("neox_sequential", _hf("GPTNeoX", "ForCausalLM", use_parallel_residual=False), "decoder", causal=True),
    TestHost("llama", _hf("Llama", "ForCausalLM", num_key_value_heads=2), "decoder", causal=True, family=True),
    TestHost("qwen2", _hf("Qwen2", "ForCausalLM", num_key_value_heads=2), "decoder", causal=True),
    TestHost("qwen3", _hf("Qwen3", "ForCausalLM", num_key_value_heads=2, head_dim=8), "decoder", causal=True),
    TestHost("bert_decoder", _hf("Bert", "LMHeadModel", is_decoder=True), "decoder", causal=True, packs=False),
    TestHost("torch_post", _torch(True, False), "vectors", family=True),
    TestHost("torch_pre", _torch(True, True), "vectors"),
    TestHost("torch_tokens_first", _torch(False, False), "vectors", batch_first=False),
    # A row that is padding up to a token that sees nothing but padding is NaN in torch itself.
    TestHost("torch_causal", _torch(True, True), "vectors", causal=True, paddings=("right",)),
    TestHost("own_vit", _own(networks.ViTConfig, image=8, patch=4), "vision", paddings=(), own=True),
    TestHost("own_encoder_post", _own(networks.EncoderConfig, norm="post"), "encoder", **_OWN_TEXT),
    TestHost(
        "own_encoder_peri", _own(networks.EncoderConfig, norm="peri", **_CRAMMED), "encoder", family=True, **_OWN_TEXT
    ),
    TestHost("own_decoder", _own(networks.DecoderConfig, positions="learned"), "decoder", **_OWN_CAUSAL),
    TestHost("own_decoder_relative", _own(networks.DecoderConfig, norm="post"), "decoder", family=True, **_OWN_CAUSAL),
    TestHost("timm_vit", _timm, "vision", paddings=(), pixels="x"),
    TestHost("clip_text", _hf("CLIPText"), "encoder", causal=True),
    TestHost("clip_vision", _hf("CLIPVision", **_IMAGE), "vision", paddings=(), read=_with_pooled),
    TestHost("siglip_vision", _hf("SiglipVision", **_IMAGE, vision_use_head=False), "vision", paddings=()),
    TestHost("dinov2", _hf("Dinov2", **_IMAGE, mlp_ratio=2, use_mask_token=False), "vision", paddings=()),
    TestHost("gemma", _hf("Gemma", "ForCausalLM", **_GROUPED), "decoder", causal=True),
    TestHost("gemma2", _hf("Gemma2", "ForCausalLM", **_GROUPED), "decoder", causal=True),
    TestHost("gemma3", _hf("Gemma3Text", "ForCausalLM", of="Gemma3", **_GROUPED), "decoder", causal=True),
    TestHost("t5_encoder", _hf("T5", "EncoderModel", **_T5), "encoder", counts_pads=True),
    TestHost("t5", _hf("T5", "ForConditionalGeneration", **_T5), "pair", causal=True, paddings=("right",)),
    TestHost("swin", _swin, "vision", paddings=()),
    TestHost("deberta_v2", _hf("DebertaV2", **_DEBERTA), "encoder"),
    TestHost("modernbert", _hf("ModernBert", global_attn_every_n_layers=2, local_attention=8), "encoder"),
    TestHost("bloom", _hf("Bloom", "ForCausalLM"), "decoder", causal=True, counts_pads=True, packs=False),
    TestHost("falcon", _hf("Falcon", "ForCausalLM", **_FALCON), "decoder", causal=True, packs=False),
    TestHost("phi3", _hf("Phi3", "ForCausalLM", num_key_value_heads=2), "decoder", causal=True),
    TestHost("phi", _hf("Phi", "ForCausalLM"), "decoder", causal=True),
    TestHost("falcon_one_norm", _hf("Falcon", "ForCausalLM", **_OLD_FALCON), "decoder", causal=True, packs=False),
    TestHost("falcon_in_turn", _hf("Falcon", "ForCausalLM", **_ALIBI), "decoder", causal=True, packs=False),
    TestHost("mixtral", _hf("Mixtral", "ForCausalLM", **_EXPERTS), "decoder", causal=True),
    TestHost("mistral", _hf("Mistral", "ForCausalLM", num_key_value_heads=2), "decoder", causal=True),
    TestHost("whisper", _whisper, "pair", causal=True, paddings=("right",), sound=True),
    TestHost("torch_decoder_post", _torch_decoder(False), "vectors", **_CROSSED),
    TestHost("torch_decoder_pre", _torch_decoder(True), "vectors", **_CROSSED),
)
BY_NAME = {host.name: host for host in HOSTS}
FAMILIES = tuple(host for host in HOSTS if host.family)
