"""Explanations of several stacks, of one of them, and of one stage."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import unsmooth
from tests.explaining.seeing import encoder, streams
from tests.models.stack_entries import STACK_ENTRIES
from unsmooth.errors import UnsmoothError
from unsmooth.explaining import Explanation, load_explanation
from unsmooth.models import value_projection

BY_NAME = {entry.name: entry for entry in STACK_ENTRIES}
# Not asked for: how a block reacts to small changes takes long and is tested elsewhere.
QUICK: dict[str, Any] = {"jacobian": False, "progress": False}


@pytest.mark.parametrize(
    ("name", "blocks", "part", "fields"),
    [
        ("t5-relu", "encoder.block.*", "encoder", ("input_ids", "attention_mask")),
        ("clip", "vision_model.encoder.layers.*", "vision_model", ("pixel_values",)),
        ("clip", "text_model.encoder.layers.*", "text_model", ("input_ids", "attention_mask")),
        ("siglip", "text_model.encoder.layers.*", "text_model", ("input_ids", "attention_mask")),
        ("whisper", "encoder.layers.*", "encoder", ("input_features",)),
    ],
)
def test_one_stack_of_a_model_is_explained_as_if_it_were_alone(
    name: str, blocks: str, part: str, fields: tuple[str, ...]
) -> None:
    entry = BY_NAME[name]
    model = entry.model()
    data = {field: entry.batch()[field] for field in fields}
    alone = unsmooth.explain(model.get_submodule(part), data, **QUICK)
    within = unsmooth.explain(model, data, blocks=blocks, **QUICK)
    assert not within.notes
    assert len(within.layers) == len(alone.layers)
    for layer, other in zip(within.layers, alone.layers, strict=True):
        assert layer.verdict == other.verdict != "undecided"
        assert layer.measured == pytest.approx(other.measured, abs=1e-9)
        assert layer.predicted == pytest.approx(other.predicted, abs=1e-6)
        assert layer.breakdown is not None
        assert layer.breakdown.total == pytest.approx(layer.measured, abs=1e-6)


def test_the_padding_of_an_encoder_is_its_own() -> None:
    entry = BY_NAME["t5-relu"]
    model, batch = entry.model(), entry.batch()
    both = unsmooth.explain(model, batch, blocks="encoder.block.*", **QUICK)
    texts = {field: batch[field] for field in ("input_ids", "attention_mask")}
    alone = unsmooth.explain(model, texts, blocks="encoder.block.*", **QUICK)
    assert [one.measured for one in both.layers] == pytest.approx([one.measured for one in alone.layers], abs=1e-9)


TOWERS = {"text": "text_model.encoder.layers.*", "vision": "vision_model.encoder.layers.*"}


@pytest.fixture(scope="module")
def towers() -> Explanation:
    entry = BY_NAME["clip"]
    return unsmooth.explain(entry.model(), entry.batch(), name="clip", **QUICK)


def test_every_stack_of_a_model_is_explained_by_itself(towers: Explanation) -> None:
    entry = BY_NAME["clip"]
    assert [one.stack for one in towers.stacks] == [*TOWERS]
    assert [one.name for one in towers.stacks] == ["clip · text", "clip · vision"]
    for one in towers.stacks:
        alone = unsmooth.explain(entry.model(), entry.batch(), blocks=TOWERS[one.stack], **QUICK)
        assert [layer.layer for layer in one.layers] == [*range(1, len(alone.layers) + 1)]
        assert replace(one, name="", sentence="", manifest={}) == replace(alone, name="", sentence="", manifest={})
    assert towers.layers == tuple(layer for one in towers.stacks for layer in one.layers)
    assert towers.sentence.startswith("Text: clip · text: measured")


def test_one_stack_is_picked_by_its_name(towers: Explanation) -> None:
    model, batch = BY_NAME["clip"].model(), BY_NAME["clip"].batch()
    found = unsmooth.explain(model, batch, stack="vision", name="clip · vision", **QUICK)
    assert replace(found, manifest={}) == replace(towers.stacks[1], manifest={})
    values = value_projection(model, 1, stack="vision")
    assert torch.equal(values.w_v, value_projection(model, 1, blocks=TOWERS["vision"]).w_v)
    with pytest.raises(UnsmoothError, match=r"one stack of Transformer blocks.*Try stack='text', blocks='text_model"):
        value_projection(model, 1)


def test_several_stacks_are_written_and_read(towers: Explanation, tmp_path: Path) -> None:
    read = load_explanation(towers.save(tmp_path))
    assert read.stacks == towers.stacks
    assert read.layers == towers.layers
    assert towers.to_frame()["stack"].tolist() == [layer.stack for layer in towers.layers]
    assert set(towers.to_frame("heads")["stack"]) == {*TOWERS}


def test_several_stacks_are_explained_from_weights() -> None:
    found = unsmooth.explain(BY_NAME["clip"].model(), **QUICK)
    assert [len(one.layers) for one in found.stacks] == [2, 3]
    assert all("weights only" in one.sentence for one in found.stacks)


def test_a_stack_that_does_not_run_is_left_out_by_name() -> None:
    entry = BY_NAME["clip"]
    texts = {name: value for name, value in entry.batch().items() if name != "pixel_values"}
    found = unsmooth.explain(entry.model(), texts, **QUICK)
    assert {one.stack for one in found.layers} == {"text"}
    assert not found.stacks
    assert found.notes == ("The vision stack was not run: the data has no 'pixel_values'.",)


def test_a_decoder_that_reads_another_stack_is_left_out_by_name() -> None:
    entry = BY_NAME["t5-relu"]
    found = unsmooth.explain(entry.model(), entry.batch(), **QUICK)
    alone = unsmooth.explain(entry.model(), entry.batch(), blocks="encoder.block.*", **QUICK)
    assert found.layers == alone.layers
    (note,) = found.notes
    assert note.startswith("The decoder stack was not explained. Expected blocks of attention and MLP alone")


def test_what_cross_attention_does_is_not_explained() -> None:
    with pytest.raises(UnsmoothError, match="t5 blocks with cross-attention"):
        unsmooth.explain(BY_NAME["t5-relu"].model(), blocks="decoder.block.*", **QUICK)


def test_stages_are_explained_each_by_itself() -> None:
    entry = BY_NAME["swin-shifted"]
    model = entry.model()
    assert len(unsmooth.explain(model, **QUICK).layers) == 5
    stages = unsmooth.explain(model, entry.batch(), **QUICK).stacks
    assert [(one.stack, len(one.layers)) for one in stages] == [("stage 0", 2), ("stage 1", 2), ("stage 2", 1)]
    found = unsmooth.explain(model, entry.batch(), blocks="encoder.layers.1.blocks.*", **QUICK)
    assert not found.notes
    assert [layer.measured for layer in stages[1].layers] == [layer.measured for layer in found.layers]
    assert all(layer.rebuilt is not None and layer.rebuilt < 1e-5 for one in stages for layer in one.layers)
    whole = unsmooth.scan(model, entry.batch(), metrics=["token_similarity"], progress=False).curve()
    # Layer 3 is compared with what enters its stage, layer 4 with layer 3.
    assert found.layers[1].measured == pytest.approx(whole[4].mean - whole[3].mean, abs=1e-5)


def test_a_window_as_large_as_the_image_is_plain_attention() -> None:
    entry = BY_NAME["swin-shifted"]
    found = unsmooth.explain(entry.model(), entry.batch(), blocks="encoder.layers.2.blocks.*", **QUICK)
    assert not found.notes
    assert found.layers[0].predicted


@pytest.mark.parametrize("kind", ["longformer", "vilt"])
def test_tokens_of_the_model_itself_count_as_in_a_scan(kind: str) -> None:
    torch.manual_seed(0)
    small: dict[str, Any] = {
        "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
    }  # fmt: skip
    model: Any = (
        transformers.LongformerModel(transformers.LongformerConfig(**small, attention_window=4, pad_token_id=1))
        if kind == "longformer"
        else transformers.ViltModel(transformers.ViltConfig(**small, image_size=16, patch_size=8))
    ).eval()
    batch = {"input_ids": torch.randint(2, 20, (3, 6)), "attention_mask": torch.ones(3, 6, dtype=torch.long)}
    batch["attention_mask"][0, 4:] = 0
    batch |= {} if kind == "longformer" else {"pixel_values": torch.randn(3, 3, 16, 16)}
    found = unsmooth.explain(model, batch, **QUICK)
    torch.manual_seed(0)
    curve = unsmooth.scan(model, batch, metrics=["token_similarity"], tokens="all", progress=False).curve()
    measured = [found.layers[0].similarity_before, *(layer.similarity_after for layer in found.layers)]
    assert measured == pytest.approx([row.mean for row in curve], abs=1e-5)


def test_a_mask_of_other_tokens_is_refused_in_the_words_of_a_scan() -> None:
    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder()

        def forward(self, x: Tensor) -> Tensor:
            return self.encoder(x[:, ::2])

    data = {"x": streams(tokens=8), "token_mask": torch.ones(3, 8)}
    for look in (unsmooth.explain, partial(unsmooth.scan, metrics=["token_similarity"])):
        with pytest.raises(UnsmoothError, match="a mask for the 4 tokens of the model's hidden states but got one for"):
            look(Halved(), data, progress=False)


def test_of_two_streams_in_one_block_the_first_is_explained() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
            self.norm, self.mlp, self.other = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
            y = self.norm(x)
            x = x + self.attn(y, y, y, need_weights=False)[0]
            return x + self.mlp(x), beside + self.other(beside)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block(), Block()])

        def forward(self, x: Tensor) -> Tensor:
            beside = x.flip(-1)
            for block in self.blocks:
                x, beside = block(x, beside)
            return x + beside

    torch.manual_seed(0)
    found = unsmooth.explain(Both().eval(), {"x": streams()}, **QUICK)
    assert {layer.stack for layer in found.layers} == {"x"}
    assert all(layer.rebuilt is not None and layer.rebuilt < 1e-5 for layer in found.layers)
    assert any(note.startswith("The beside stack was not explained. Expected blocks that take") for note in found.notes)


def test_blocks_that_return_a_list_are_run_again() -> None:
    torch.manual_seed(0)
    config = transformers.OpenAIGPTConfig(vocab_size=20, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    ids = {"input_ids": torch.randint(20, (3, 6))}
    found = unsmooth.explain(transformers.OpenAIGPTModel(config).eval(), ids, **QUICK)
    assert all("T3" in layer.predicted for layer in found.layers)
