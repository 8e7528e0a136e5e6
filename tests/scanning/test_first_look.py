"""What a stack reads, found out by trying: numbers beside float64 references from hooks and masks of the tests' own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import Tensor, nn

import unsmooth
from unsmooth.errors import UnsmoothError
from unsmooth.models import find_stacks
from unsmooth.scanning.rows import is_row

# Sources and targets have as many tokens, and other masks: width tells nothing.
SOURCE = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]])
TARGET = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])
BATCH, TOKENS = SOURCE.shape
PAD = 1
SPECIAL = {"pad_token_id": PAD, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
SIZES = {"vocab_size": 40, "max_position_embeddings": 32, **SPECIAL}
BERT = {
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 40,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
}
BART = {
    "d_model": 12,
    **{f"{side}_layers": 3 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 24 for side in ("encoder", "decoder")},
    **SIZES,
}
# 25 tokens, with the class token; 16 pixels in patches of 4 give 17, which no text has.
VIT = {**{key: BERT[key] for key in list(BERT)[:4]}, "image_size": 16, "patch_size": 4}


def ids(real: Tensor, seed: int) -> Tensor:
    """Token ids, padding where nothing is real."""
    return torch.randint(5, 40, real.shape, generator=torch.Generator().manual_seed(seed)).where(real.bool(), PAD)


def data(*kinds: str) -> dict[str, Tensor]:
    """A batch with the inputs of these names and their masks."""
    every = {
        "input_ids": {"input_ids": ids(SOURCE, 1), "attention_mask": SOURCE},
        "decoder_input_ids": {"decoder_input_ids": ids(TARGET, 2), "decoder_attention_mask": TARGET},
        "pixel_values": {"pixel_values": torch.randn(BATCH, 3, 16, 16, generator=torch.Generator().manual_seed(3))},
        "input_features": {"input_features": torch.randn(BATCH, 20, 8, generator=torch.Generator().manual_seed(4))},
        "input_values": {"input_values": torch.randn(BATCH, 400, generator=torch.Generator().manual_seed(5))},
    }
    return {name: value for kind in kinds for name, value in every[kind].items()}


PAIR = ("input_ids", "decoder_input_ids")


def built(make: Callable[[], nn.Module]) -> nn.Module:
    """The model, random, with weights large enough that layers differ."""
    torch.manual_seed(0)
    model = make().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    for module in model.modules():  # a scan keeps no cache either, of which fsmt makes another mask
        if getattr(getattr(module, "config", None), "use_cache", False):
            module.config.use_cache = False
    return model


def bart() -> nn.Module:
    return transformers.BartModel(transformers.BartConfig(**BART))


def marian() -> nn.Module:
    return transformers.MarianModel(transformers.MarianConfig(**BART))


def fsmt() -> nn.Module:
    options = {key: value for key, value in BART.items() if key != "vocab_size"}
    config = transformers.FSMTConfig(langs=["en", "de"], src_vocab_size=40, tgt_vocab_size=40, **options)
    return transformers.FSMTModel(config)


def speech_to_text() -> nn.Module:
    config = transformers.Speech2TextConfig(**BART, input_feat_per_channel=8, conv_channels=12)
    return transformers.Speech2TextModel(config)


def t5() -> nn.Module:
    sizes = {"d_model": 12, "d_kv": 6, "d_ff": 24, "num_layers": 3, "num_heads": 2, "vocab_size": 40}
    return transformers.T5Model(transformers.T5Config(**sizes, **SPECIAL))


def xlnet() -> nn.Module:
    config = transformers.XLNetConfig(vocab_size=40, d_model=12, n_layer=3, n_head=2, d_inner=24, **SPECIAL)
    return transformers.XLNetModel(config)


def clip() -> nn.Module:
    text = {**{key: BERT[key] for key in list(BERT)[:4]}, **SIZES}
    config = transformers.CLIPConfig(text_config=text, vision_config={**VIT, "hidden_size": 12}, projection_dim=6)
    return transformers.CLIPModel(config)


def image_and_text() -> nn.Module:
    towers = (
        transformers.ViTModel(transformers.ViTConfig(**VIT)),
        transformers.BertModel(transformers.BertConfig(**BERT)),
    )
    return transformers.VisionTextDualEncoderModel(vision_model=towers[0], text_model=towers[1])


def decoder() -> nn.Module:
    return transformers.BertLMHeadModel(transformers.BertConfig(**BERT, is_decoder=True, add_cross_attention=True))


def image_to_text() -> nn.Module:
    return transformers.VisionEncoderDecoderModel(
        encoder=transformers.ViTModel(transformers.ViTConfig(**VIT)), decoder=decoder()
    )


def sound_to_text() -> nn.Module:
    sizes = {key: BERT[key] for key in list(BERT)[:4]}
    config = transformers.Wav2Vec2Config(
        **sizes, conv_dim=[12, 12], conv_kernel=[10, 3], conv_stride=[5, 2], num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, vocab_size=40,
    )  # fmt: skip
    return transformers.SpeechEncoderDecoderModel(encoder=transformers.Wav2Vec2Model(config), decoder=decoder())


def speech_to_words() -> nn.Module:
    """Whose decoder reads ids only through the model around its base."""
    sizes = {key: value for key, value in BART.items() if key not in ("d_model", "max_position_embeddings")}
    config = transformers.SpeechT5Config(
        hidden_size=12, **sizes, conv_dim=[12, 12], conv_kernel=[10, 3], conv_stride=[5, 2],
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    return transformers.SpeechT5ForSpeechToText(config)


@dataclass(frozen=True)
class Case:
    """A stack of a model, and what a hand reads of it."""

    make: Callable[[], nn.Module]
    blocks: str
    kinds: tuple[str, ...]
    real: Tensor | None
    tokens_first: bool = False
    without: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return "-".join([self.make.__name__, self.blocks.removesuffix(".*"), *(f"no-{name}" for name in self.without)])


CASES = [
    Case(bart, "encoder.layers.*", PAIR, SOURCE),
    Case(bart, "decoder.layers.*", PAIR, TARGET),
    Case(bart, "decoder.layers.*", PAIR, TARGET, without=("attention_mask",)),
    Case(bart, "encoder.layers.*", PAIR, None, without=("attention_mask",)),
    Case(marian, "decoder.layers.*", PAIR, TARGET),
    Case(fsmt, "encoder.layers.*", PAIR, SOURCE, tokens_first=True),
    Case(fsmt, "decoder.layers.*", PAIR, TARGET, tokens_first=True),
    Case(xlnet, "layer.*", ("input_ids",), SOURCE, tokens_first=True),
    Case(t5, "decoder.block.*", PAIR, TARGET, without=("attention_mask",)),
    Case(speech_to_text, "encoder.layers.*", ("input_features", "decoder_input_ids"), None),
    Case(speech_to_text, "decoder.layers.*", ("input_features", "decoder_input_ids"), TARGET),
    Case(sound_to_text, "encoder.encoder.layers.*", ("input_values", "decoder_input_ids"), None),
    Case(sound_to_text, "decoder.bert.encoder.layer.*", ("input_values", "decoder_input_ids"), TARGET),
    Case(
        speech_to_words,
        "speecht5.decoder.wrapped_decoder.layers.*",
        ("input_values", "decoder_input_ids"),
        TARGET,
    ),
    Case(image_to_text, "encoder.layers.*", ("pixel_values", "decoder_input_ids"), None),
    Case(image_to_text, "decoder.bert.encoder.layer.*", ("pixel_values", "decoder_input_ids"), TARGET),
    Case(image_and_text, "vision_model.layers.*", ("pixel_values", "input_ids"), None),
    Case(image_and_text, "text_model.encoder.layer.*", ("pixel_values", "input_ids"), SOURCE),
    Case(clip, "vision_model.encoder.layers.*", ("pixel_values", "input_ids"), None),
    Case(clip, "text_model.encoder.layers.*", ("pixel_values", "input_ids"), SOURCE),
]


def first_tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else next(one for one in value if isinstance(one, Tensor))


def streams(model: nn.Module, blocks: str, batch: Mapping[str, Tensor]) -> list[Tensor]:
    """What enters the first block and what each hands on, in double precision."""
    seen: list[Tensor] = []
    path = blocks.removesuffix(".*")
    stack = list(model.get_submodule(path).children())

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        seen.append(first_tensor([*args, *kwargs.values()]).clone())

    handles = [stack[0].register_forward_pre_hook(enter, with_kwargs=True)]
    handles += [one.register_forward_hook(lambda _, args, out: seen.append(first_tensor(out).clone())) for one in stack]
    try:
        with torch.no_grad():
            model(**batch)
    finally:
        for handle in handles:
            handle.remove()
    return [one.double() for one in seen]


def mean_cosine(x_BND: Tensor, real_BN: Tensor) -> float:
    """Mean over sequences of the mean over pairs i ≠ j."""
    each = []
    for x_ND, real_N in zip(x_BND.numpy(), real_BN.bool().numpy(), strict=True):
        units = x_ND[real_N] / np.linalg.norm(x_ND[real_N], axis=1, keepdims=True)
        each.append(((units @ units.T).sum() - len(units)) / (len(units) * (len(units) - 1)))
    return float(np.mean(each))


def check(found: Any, wanted: list[Tensor], real: Tensor | None) -> None:
    assert len(found) == len(wanted) > 0
    for row, x_BND in zip(found, wanted, strict=True):
        real_BN = torch.ones(x_BND.shape[:2]) if real is None else real
        assert row.tokens == int(real_BN.sum())
        assert row.mean == pytest.approx(mean_cosine(x_BND, real_BN), abs=2e-5)


def scan(model: nn.Module, batch: Any, **options: Any) -> Any:
    options = {"metrics": ["mean_cosine"], "tokens": "all", "fingerprint": False, **options}
    return unsmooth.scan(model, [batch], progress=False, **options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_stack_by_pattern_has_its_own_mask_and_axes(case: Case) -> None:
    batch = {name: value for name, value in data(*case.kinds).items() if name not in case.without}
    model = built(case.make)
    wanted = streams(model, case.blocks, batch)
    wanted = [one.transpose(0, 1) for one in wanted] if case.tokens_first else wanted
    assert wanted[0].shape[0] == BATCH
    check(scan(model, batch, blocks=case.blocks).curve(), wanted, case.real)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("make", "kinds", "stacks"),
    [
        (image_and_text, ("pixel_values", "input_ids"), {"vision": ("vision_model.layers.*", None),
                                                         "text": ("text_model.encoder.layer.*", SOURCE)}),
        (image_to_text, ("pixel_values", "decoder_input_ids"), {"encoder": ("encoder.layers.*", None),
                                                                "decoder": ("decoder.bert.encoder.layer.*", TARGET)}),
        (sound_to_text, ("input_values", "decoder_input_ids"), {"encoder": ("encoder.encoder.layers.*", None),
                                                                "decoder": ("decoder.bert.encoder.layer.*", TARGET)}),
    ],
    ids=["image-and-text", "image-to-text", "sound-to-text"],
)  # fmt: skip
def test_stacks_that_are_found_have_their_own_masks(make: Any, kinds: Any, stacks: Any) -> None:
    model, batch = built(make), data(*kinds)
    found = scan(model, batch)
    assert {part.stack for part in found.parts} == set(stacks)
    for part in found.parts:
        blocks, real = stacks[part.stack]
        check(part.curve(), streams(model, blocks, batch), real)
    assert not found.notes


def test_a_decoder_that_makes_its_tokens_itself_has_no_mask_of_the_data() -> None:
    model, batch = built(bart), data("input_ids")
    found = scan(model, batch, blocks="decoder.layers.*")
    check(found.curve(), streams(model, "decoder.layers.*", batch), None)
    assert any("makes the tokens of these blocks itself" in note for note in found.notes)
    named = scan(model, {**batch, "token_mask": TARGET}, blocks="decoder.layers.*")
    check(named.curve(), streams(model, "decoder.layers.*", batch), TARGET)
    assert not any("itself" in note for note in named.notes)


@pytest.mark.parametrize("pads", ["right", "left"])
def test_padding_that_nothing_masks_is_counted_and_named(pads: str) -> None:
    model, batch = built(bart), data(*PAIR)
    del batch["decoder_attention_mask"]
    if pads == "left":
        batch["decoder_input_ids"] = batch["decoder_input_ids"].flip(1)
    found = scan(model, batch, blocks="decoder.layers.*")
    check(found.curve(), streams(model, "decoder.layers.*", batch), None)
    assert any("padding id 1 and the data has no 'decoder_attention_mask'" in note for note in found.notes)
    towers, named = built(image_and_text), data("pixel_values", "input_ids")
    del named["attention_mask"]  # of whose parts each has a configuration of its own
    assert any(note.startswith("text: Some texts are filled up with") for note in scan(towers, named).notes)
    texts = unsmooth.explain(towers, [named], blocks="text_model.encoder.layer.*", jacobian=False, progress=False)
    assert any(note.startswith("Some texts are filled up with") for note in texts.notes)
    batch["decoder_input_ids"] = batch["decoder_input_ids"].masked_fill(batch["decoder_input_ids"] == PAD, 7)
    assert not scan(model, batch, blocks="decoder.layers.*").notes


class TokensFirst(nn.Module):
    """Ids to a stream of (tokens, batch, dim); `most` sequences at a time."""

    def __init__(self, most: int = 100) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 12)
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))
        self.most = most

    def forward(self, input_ids: Tensor) -> Tensor:
        assert len(input_ids) <= self.most
        stream = self.embed(input_ids).transpose(0, 1)
        for layer in self.layers:
            stream = stream + layer(stream).tanh()
        return stream


class Patches(nn.Module):
    """Images to a stream of 16 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 12, 4, 4)
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))

    def forward(self, pixel_values: Tensor, pixel_mask: Tensor) -> Tensor:
        stream = self.embed(pixel_values).flatten(2).mT
        for layer in self.layers:
            stream = layer(stream)
        return stream


def padded_images() -> tuple[dict[str, Tensor], Tensor]:
    """Images of which the first is filled up at the right; which of 16 patches are real."""
    batch = {**data("pixel_values"), "pixel_mask": torch.ones(BATCH, 16, 16)}
    batch["pixel_mask"][0, :, 8:] = 0
    real = torch.ones(BATCH, 16)
    real[0, 2::4] = real[0, 3::4] = 0
    return batch, real


def test_padding_of_images_is_refused_unless_tokens_are_named() -> None:
    model, (batch, real) = built(Patches), padded_images()
    assert not scan(model, {**batch, "pixel_mask": torch.ones(BATCH, 16, 16)}, blocks="layers.*").notes
    with pytest.raises(UnsmoothError, match=r"images of one size, or a \"token_mask\" in the data\.$"):
        scan(model, batch, blocks="layers.*")
    named = scan(model, {**batch, "token_mask": real}, blocks="layers.*")
    check(named.curve(), streams(model, "layers.*", batch), real)
    assert not named.notes


class MaskedLayer(nn.Module):
    """A block that is handed a mask, whatever it means."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(12, 12)

    def forward(self, stream: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        return stream + self.attention(stream).tanh()


class MaskedPatches(nn.Module):
    """Images to a stream of 16 tokens, whose mask blocks are handed as one of some kinds."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 12, 4, 4)
        self.layers = nn.ModuleList(MaskedLayer() for _ in range(3))
        self.kind = kind

    def forward(self, pixel_values: Tensor, pixel_mask: Tensor) -> Tensor:
        stream = self.embed(pixel_values).flatten(2).mT
        real = nn.functional.interpolate(pixel_mask[None].float(), size=(4, 4))[0].flatten(1).bool()
        added = torch.zeros(real.shape).masked_fill(~real, torch.finfo(torch.float32).min)
        square = real[:, None, None].expand(-1, 1, 16, -1)
        mask = {"real": real, "padding": ~real, "added": added[:, None, None], "square": square, "whole": real.long()}
        for layer in self.layers:
            stream = layer(stream, mask[self.kind], torch.arange(16).expand(BATCH, -1))
        return stream


@pytest.mark.parametrize("kind", ["real", "padding", "added", "square", "whole"])
def test_padding_of_images_is_told_by_the_mask_that_blocks_are_handed(kind: str) -> None:
    model, (batch, real) = built(partial(MaskedPatches, kind)), padded_images()
    found = scan(model, batch)
    check(found.curve(), streams(model, "layers.*", batch), real)
    assert not found.notes


def test_padding_of_images_in_detr_is_left_out_of_its_encoder() -> None:
    config = transformers.DetrConfig(
        backbone_config=transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
        ),
        use_timm_backbone=False, use_pretrained_backbone=False, d_model=12, encoder_layers=3, decoder_layers=3,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, num_queries=5,
    )  # fmt: skip
    model = built(lambda: transformers.DetrModel(config))
    batch = {"pixel_values": torch.randn(BATCH, 3, 32, 32), "pixel_mask": torch.ones(BATCH, 32, 32)}
    batch["pixel_mask"][0, :, 16:] = batch["pixel_mask"][1, 8:] = 0
    found = scan(model, batch)
    real = batch["pixel_mask"][:, ::8, ::8].flatten(1)
    check(found.curve(stack="encoder"), streams(model, "encoder.layers.*", batch), real)
    check(found.curve(stack="decoder")[1:], streams(model, "decoder.layers.*", batch)[1:], None)


class Segmenting(transformers.PreTrainedModel):
    """Images through one stack, whose mean goes through another: both say that they read images first."""

    def __init__(self) -> None:
        super().__init__(transformers.ViTConfig(**VIT))
        self.main_input_name = ["pixel_values", "task_inputs"]
        self.first = transformers.ViTModel(transformers.ViTConfig(**VIT), add_pooling_layer=False)
        self.second = nn.Module()
        self.second.layers = nn.ModuleList(MaskedLayer() for _ in range(3))

    def forward(self, pixel_values: Tensor, task_inputs: Tensor) -> Tensor:
        stream = self.first(pixel_values).last_hidden_state * task_inputs.mean()
        for layer in self.second.layers:
            stream = layer(stream, task_inputs, task_inputs)
        return stream


def test_all_stacks_run_of_a_model_that_names_several_main_inputs() -> None:
    model, batch = built(Segmenting), {**data("pixel_values"), "task_inputs": torch.ones(BATCH, 5)}
    found = scan(model, batch)
    check(found.curve(stack="second"), streams(model, "second.layers.*", batch), None)


def test_padding_of_images_beside_words_is_refused() -> None:
    model = built(lambda: transformers.ViltModel(transformers.ViltConfig(**{**BERT, **VIT})))
    batch = {**data("input_ids"), **padded_images()[0]}
    with pytest.raises(UnsmoothError, match="which tokens are padding of images"):
        scan(model, batch)
    assert scan(model, {**batch, "pixel_mask": torch.ones(BATCH, 16, 16)}).curve()[0].tokens == int(SOURCE.sum()) + 51


def test_a_dict_of_images_in_patches_is_a_batch() -> None:
    """They have three axes, as one image in pixels has, and several main inputs may be named."""
    config = transformers.Siglip2VisionConfig(
        hidden_size=12, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24, num_patches=16, patch_size=4
    )
    model = built(lambda: transformers.Siglip2VisionModel(config))
    model.main_input_name = ["pixel_values", "spatial_shapes"]
    mask = torch.ones(BATCH, 16, dtype=torch.long)
    mask[1, 8:] = 0
    batch = {
        "pixel_values": torch.randn(BATCH, 16, 48),
        "pixel_attention_mask": mask,
        "spatial_shapes": torch.tensor([[4, 4], [2, 4], [4, 4]]),
    }
    found = unsmooth.scan(model, batch, metrics=["mean_cosine"], tokens="all", progress=False, fingerprint=False)
    check(found.curve(), streams(model, "encoder.layers.*", batch), mask)


def test_sounds_in_a_row_with_their_lengths_are_a_batch() -> None:
    """They have two axes, as the features of one sound have."""
    sounds = {"input_features": torch.randn(16, 96), "feature_lens": torch.tensor([32, 32, 32])}
    assert not is_row(sounds)
    assert is_row({"input_features": sounds["input_features"]})


def test_as_many_sequences_as_tokens_are_told_apart_or_refused() -> None:
    batch = {"input_ids": ids(torch.ones(6, 6), 1)}
    model = built(TokensFirst)
    wanted = [one.transpose(0, 1) for one in streams(model, "layers.*", batch)]
    check(scan(model, batch, blocks="layers.*").curve(), wanted, None)
    model = built(partial(TokensFirst, 6))
    with pytest.raises(UnsmoothError, match=r"\(6, 6, 12\) for 6 sequences, of which neither can be told"):
        scan(model, batch, blocks="layers.*")


class Sum(nn.Module):
    """Two texts of one length in one stream."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 12)
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor, **masks: Tensor) -> Tensor:
        stream = self.embed(input_ids) + self.embed(decoder_input_ids)
        for layer in self.layers:
            stream = layer(stream)
        return stream


def test_two_masks_that_fit_are_refused_unless_one_is_named() -> None:
    model, batch = built(Sum), data(*PAIR)
    with pytest.raises(UnsmoothError, match=r'but got input_ids and decoder_input_ids. Try a "token_mask"'):
        scan(model, batch, blocks="layers.*")
    found = scan(model, {**batch, "token_mask": SOURCE}, blocks="layers.*")
    check(found.curve(), streams(model, "layers.*", batch), SOURCE)


class Pair(nn.Module):
    """Two texts to two towers, or to one that runs twice, by names of its own."""

    def __init__(self, towers: int = 2) -> None:
        super().__init__()
        self.query = transformers.BertModel(transformers.BertConfig(**BERT))
        self.document = transformers.BertModel(transformers.BertConfig(**BERT)) if towers == 2 else self.query

    def forward(
        self, query_ids: Tensor, document_ids: Tensor, query_attention_mask: Any = None,
        document_attention_mask: Any = None,
    ) -> Tensor:  # fmt: skip
        query = self.query(input_ids=query_ids, attention_mask=query_attention_mask)[0]
        return query.mean() + self.document(input_ids=document_ids, attention_mask=document_attention_mask)[0].mean()


def pair_data() -> dict[str, Tensor]:
    of_query = {"query_ids": ids(SOURCE, 1), "query_attention_mask": SOURCE}
    return {**of_query, "document_ids": ids(TARGET, 2), "document_attention_mask": TARGET}


def test_two_towers_of_texts_have_their_own_masks() -> None:
    model, batch = built(Pair), pair_data()
    found = scan(model, batch)
    for name, real in (("query", SOURCE), ("document", TARGET)):
        wanted = streams(model, f"{name}.encoder.layer.*", batch)
        check(next(part for part in found.parts if part.stack == name).curve(), wanted, real)
        check(scan(model, batch, blocks=f"{name}.encoder.layer.*").curve(), wanted, real)
    del batch["query_attention_mask"]
    assert [note[:40] for note in scan(model, batch).notes] == ["query: Some texts are filled up with the"]


@pytest.mark.parametrize("look", [scan, lambda model, batch: unsmooth.explain(model, [batch], progress=False)])
def test_a_tower_that_runs_twice_is_refused_where_a_mask_may_be_of_either_run(look: Any) -> None:
    model, batch = built(partial(Pair, 1)), pair_data()
    with pytest.raises(UnsmoothError, match="blocks that run once in a batch whose mask is of their tokens"):
        look(model, batch)
    plain = {name: one.clamp_min(5) for name, one in batch.items() if name.endswith("ids")}
    if look is scan:
        found = scan(model, plain)
        assert found.notes == ("The blocks ran more than once in a batch: what is measured is their last run.",)
        check(found.curve(), streams(model, "query.encoder.layer.*", plain)[4:], None)


def test_a_pattern_over_two_stacks_is_refused() -> None:
    with pytest.raises(
        UnsmoothError, match=r"but got 'encoder.layers.\*' and 'decoder.layers.\*'. Try blocks='encoder"
    ):
        scan(built(bart), data(*PAIR), blocks="*.layers.*")


class Joint(nn.Module):
    """A block of two streams, as SD3 has it: called with images first, it returns texts first."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        return self.text(encoder_hidden_states), self.image(hidden_states)


class TwoStreams(nn.Module):
    def __init__(self, added: float | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Joint() for _ in range(3))
        self.added = added

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        for block in self.blocks:
            text, image = block(hidden_states=image, encoder_hidden_states=text)
            image = image if self.added is None else image + self.added
        return image


@pytest.mark.parametrize("words", [5, 9])
def test_blocks_of_two_streams_are_two_stacks(words: int) -> None:
    model, batch = built(TwoStreams), {"image": torch.randn(2, 9, 12), "text": torch.randn(2, words, 12)}
    found, (text, image) = scan(model, batch, blocks="blocks.*"), by_hand(model, batch)
    assert {part.stack for part in found.parts} == {"hidden_states", "encoder_hidden_states"}
    check(found.curve(stack="hidden_states"), image, None)
    check(found.curve(stack="encoder_hidden_states"), text, None)
    assert not found.notes
    check(scan(model, batch, blocks="blocks.*.image").curve()[1:], image[1:], None)


def by_hand(model: TwoStreams, batch: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Both streams as they enter and after each block."""
    text, image = [batch["text"]], [batch["image"]]
    with torch.no_grad():
        for block in model.blocks:
            text.append(block.text(text[-1]))
            image.append(block.image(image[-1] if len(image) == 1 or model.added is None else image[-1] + model.added))
    return text, image


def test_what_is_done_to_one_stream_between_blocks_is_told() -> None:
    model, batch = built(partial(TwoStreams, 0.5)), {"image": torch.randn(2, 9, 12), "text": torch.randn(2, 5, 12)}
    found, (text, _) = scan(model, batch, blocks="blocks.*"), by_hand(model, batch)
    check(found.curve(), text, None)


class Beside(Joint):
    """The same where the stream that comes first stays so; what conditions it may be passed on as it is."""

    def __init__(self, changes: bool) -> None:
        super().__init__()
        self.changes = changes

    def forward(self, hidden_states: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
        return self.image(hidden_states), self.text(beside) if self.changes else beside


@pytest.mark.parametrize("changes", [True, False])
def test_a_second_stream_is_one_if_it_is_changed(changes: bool) -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Beside(changes) for _ in range(3))

        def forward(self, image: Tensor, text: Tensor) -> Tensor:
            for block in self.blocks:
                image, text = block(image, text)
            return image

    found = scan(built(Pairs), {"image": torch.randn(2, 9, 12), "text": torch.randn(2, 5, 12)}, blocks="blocks.*")
    tokens = {part.stack: part.rows[0].tokens for part in found.parts}
    assert tokens == ({"hidden_states": 2 * 9, "beside": 2 * 5} if changes else {"": 2 * 9})


class Stages(nn.Module):
    """Tokens are merged, and become wider, between two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(8, 8)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[1](self.blocks[0](x))
        return self.blocks[2](x.reshape(len(x), -1, 8))


def test_stages_in_one_pattern_are_told_apart() -> None:
    model, batch = built(Stages), torch.randn(3, 6, 4)
    rows = scan(model, batch, blocks="blocks.*").curve()
    assert [(row.layer, row.stage, row.tokens) for row in rows] == [(0, 0, 18), (1, 0, 18), (2, 0, 18), (3, 1, 9)]
    check(rows[-1:], [model(batch).detach()], None)


class Prefixed(nn.Module):
    """Two tokens in front of those of the ids; the first stands out."""

    main_input_name = "input_ids"

    def __init__(self) -> None:
        super().__init__()
        self.config = transformers.PretrainedConfig(vocab_size=40)
        self.embed = nn.Embedding(40, 12)
        self.layers = nn.ModuleList(nn.Identity() for _ in range(3))

    def forward(self, input_ids: Tensor) -> Tensor:
        stream = self.embed(input_ids)
        stream = torch.cat([100 * torch.ones_like(stream[:, :2]), stream], dim=1)
        for layer in self.layers:
            stream = layer(stream)
        return stream


def test_ids_that_are_not_those_of_the_tokens_name_none() -> None:
    model, batch = built(Prefixed), {"input_ids": ids(torch.ones(3, 6), 1)}
    found = scan(model, batch, blocks="layers.*", confounds=True)
    check(found.curve(), streams(model, "layers.*", batch), None)
    assert {token.position for token in found.confounds[0].massive_tokens} == {0, 1}


@pytest.mark.parametrize(
    ("make", "batch", "message"),
    [
        (lambda: transformers.BertModel(transformers.BertConfig(**BERT)), data("pixel_values"),
         "Expected 'input_ids', as BertModel reads texts but got 'pixel_values'. Try texts."),
        (lambda: transformers.ViTModel(transformers.ViTConfig(**VIT)), data("input_ids"),
         "Expected 'pixel_values', as ViTModel reads images but got 'input_ids'. Try images."),
        (lambda: transformers.ViTModel(transformers.ViTConfig(**VIT)), torch.randn(2, 5, 12),
         "Expected 'pixel_values', as ViTModel reads images but got 'inputs_embeds'. Try images."),
    ],
    ids=["image-to-bert", "ids-to-vit", "vectors-to-vit"],
)  # fmt: skip
def test_data_of_another_kind_than_the_model_reads(make: Any, batch: Any, message: str) -> None:
    with pytest.raises(UnsmoothError) as error:
        scan(built(make), batch)
    assert str(error.value) == message


def test_a_base_model_that_takes_other_things_is_not_called_in_place_of_the_model() -> None:
    sizes = {key: BERT[key] for key in list(BERT)[:4]}
    sizes["hidden_size"] = 16  # in quarters of a head
    config = transformers.DINOv3ViTConfig(**sizes, image_size=16, patch_size=4, num_register_tokens=0)
    model, batch = built(lambda: transformers.DINOv3ViTModel(config)), data("pixel_values")
    found = scan(model, batch, blocks="model.layer.*")
    check(found.curve(), streams(model, "model.layer.*", batch), None)


def test_a_model_without_weights_is_refused() -> None:
    with torch.device("meta"):
        model = transformers.BertModel(transformers.BertConfig(**BERT))
    with pytest.raises(UnsmoothError, match="a model with weights but got one on the meta device"):
        scan(model, data("input_ids"))
    partly = transformers.BertModel(transformers.BertConfig(**BERT))
    partly.encoder.layer[2].to("meta")
    with pytest.raises(UnsmoothError, match="a model with weights but got one on the meta device"):
        scan(partly, data("input_ids"))


def test_a_monitor_finds_out_too_and_leaves_nothing_behind() -> None:
    model, batch = built(bart).train(), data(*PAIR)
    monitor = unsmooth.Monitor(model, probe=batch, blocks="decoder.layers.*", metrics=["mean_cosine"], tokens="all")
    monitor.begin()
    model.eval()
    check(monitor.last.curve("mean_cosine"), streams(model, "decoder.layers.*", batch), TARGET)
    monitor.close()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert len(find_stacks(model, "decoder.layers.*")) == 1


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (lambda: transformers.BertModel(transformers.BertConfig(**BERT)), Image.new("RGB", (16, 16)),
         "Expected texts, which this model reads but got images. Try texts as data."),
        (lambda: transformers.ViTModel(transformers.ViTConfig(**VIT)), "a text of words",
         "Expected images, which this model reads but got texts. Try images as data."),
    ],
    ids=["picture-to-bert", "words-to-vit"],
)  # fmt: skip
def test_pictures_for_a_model_of_texts_and_the_other_way(make: Any, given: Any, message: str) -> None:
    with pytest.raises(UnsmoothError) as error:
        unsmooth.scan(built(make), [given], progress=False)
    assert str(error.value) == message


class TokensLast(nn.Module):
    """Ids to a stream of (batch, dim, tokens)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 12)
        self.layers = nn.Sequential(*(nn.Conv1d(12, 12, 1) for _ in range(3)))

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.layers(self.embed(input_ids).mT)


def test_streams_with_tokens_last_are_turned() -> None:
    model, batch = built(TokensLast), {"input_ids": ids(torch.ones(3, 6), 1)}
    wanted = [one.mT for one in streams(model, "layers.*", batch)]
    check(scan(model, batch, blocks="layers.*").curve(), wanted, None)


def test_random_numbers_are_drawn_once() -> None:
    """What a model draws, as a masked autoencoder does, is what it draws without a first look."""
    sizes = {key: BERT[key] for key in list(BERT)[:4]}
    model = built(lambda: transformers.ViTMAEModel(transformers.ViTMAEConfig(**sizes, image_size=16, patch_size=4)))
    batch = data("pixel_values")
    torch.manual_seed(3)
    wanted = streams(model, "layers.*", batch)
    torch.manual_seed(3)
    check(scan(model, batch, blocks="layers.*").curve(), wanted, None)


def test_a_tower_of_images_is_measured_beside_the_texts() -> None:
    text = {**BERT, "num_key_value_heads": 2}
    config = transformers.Idefics3Config(
        text_config={"model_type": "llama", **text}, vision_config={**VIT}, image_token_id=39, scale_factor=2
    )
    model = built(lambda: transformers.Idefics3ForConditionalGeneration(config))
    images = {"pixel_values": data("pixel_values")["pixel_values"][:, None]}
    batch = {**data("input_ids"), **images}
    batch["input_ids"] = batch["input_ids"].masked_fill(batch["input_ids"] == 39, 5)
    # Four tokens of each image stand in front of its text.
    batch["input_ids"] = torch.cat([torch.full((BATCH, 4), 39), batch["input_ids"]], dim=1)
    real = batch["attention_mask"] = torch.cat([torch.ones_like(SOURCE[:, :4]), SOURCE], dim=1)
    found = scan(model, batch)
    check(found.curve(stack="text"), streams(model, "model.text_model.layers.*", batch), real)
    tower = streams(model, "model.vision_model.encoder.layers.*", batch)
    check(found.curve(stack="vision"), tower, None)
    assert not found.notes
    check(scan(model, batch, blocks="model.vision_model.encoder.layers.*").curve(), tower, None)
