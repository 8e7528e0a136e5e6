"""Scans of models with several stacks or stages: numbers beside float64 references from hooks of their own."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.models.entry import modules_at
from tests.models.stack_entries import STACK_ENTRIES, Stack, StackEntry, real_tokens
from unsmooth.errors import UnsmoothError
from unsmooth.scanning.condition import Condition

BY_NAME = {entry.name: entry for entry in STACK_ENTRIES}


def streams(entry: StackEntry, stack: Stack, model: nn.Module, site: str = "residual") -> dict[int, Any]:
    """Layer to float64 vectors (batch, tokens, dim), from hooks on the modules that the entry names."""
    seen: list[Tensor] = []

    def keep(value: Any) -> None:
        tensor = value if isinstance(value, Tensor) else value[0]
        seen.append(tensor if entry.batch_first else tensor.transpose(0, 1))

    path, end = (stack.blocks, "output") if site == "residual" else stack.paths[site]
    handles = [m.register_forward_hook(lambda _, args, out: keep(out)) for m in modules_at(model, path).values()]
    assert end == "output"
    if site == "residual":
        (stem,) = modules_at(model, stack.stem[0]).values()
        if stack.stem[1] == "input":
            handles.append(stem.register_forward_pre_hook(lambda _, args: keep(args)))
        else:
            handles.append(stem.register_forward_hook(lambda _, args, out: keep(out)))
    torch.backends.mha.set_fastpath_enabled(False)  # which packs a padded batch
    try:
        with torch.no_grad():
            model(**entry.batch())
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
        for handle in handles:
            handle.remove()
    return dict(enumerate((one.double().numpy() for one in seen), start=0 if site == "residual" else 1))


def mean_cosine(x_BND: Any, real_BN: Any) -> float:
    """Mean over sequences of the mean over pairs i ≠ j."""
    each = []
    for x_ND, real_N in zip(x_BND, real_BN, strict=True):
        units = x_ND[real_N] / np.linalg.norm(x_ND[real_N], axis=1, keepdims=True)
        count = len(units)
        each.append((float((units @ units.T).sum()) - count) / (count * (count - 1)))
    return float(np.mean(each))


CASES = [
    (entry.name, name, site)
    for entry in STACK_ENTRIES
    for name, stack in entry.stacks.items()
    for site in ("residual", "cross")
    if site == "residual" or site in stack.paths
]


@pytest.mark.parametrize(("model", "name", "site"), CASES, ids=["-".join(filter(None, case)) for case in CASES])
def test_numbers_of_every_stack_and_layer(model: str, name: str, site: str) -> None:
    entry = BY_NAME[model]
    stack, built = entry.stacks[name], entry.model()
    found = unsmooth.scan(built, [entry.batch()], metrics=["mean_cosine"], sites=(site,), tokens="all", progress=False)
    wanted = streams(entry, stack, built, site)
    rows = found.curve("mean_cosine", site, stack=name)
    assert [row.layer for row in rows] == sorted(wanted)
    for row in rows:
        x_BND = wanted[row.layer]
        real = np.ones(x_BND.shape[:2], bool) if stack.real is None else stack.real.numpy()
        assert row.mean == pytest.approx(mean_cosine(x_BND, real), abs=2e-5)
        assert row.tokens == real.sum()
        assert row.stack == name
        assert row.stage == (None if stack.stages is None else stack.stages[max(row.layer - 1, 0)])


def test_special_tokens_are_told_stack_by_stack() -> None:
    entry = BY_NAME["t5-relu"]
    batch = entry.batch()
    batch["input_ids"][0, 5] = batch["input_ids"][1, 3] = 2  # the end of a text
    batch["decoder_input_ids"][:, 0] = 2
    built = entry.model()
    found = unsmooth.scan(built, batch, metrics=["mean_cosine"], progress=False)
    encoder, decoder = found.stacks
    assert encoder.rows[0].tokens == 10
    assert decoder.rows[0].tokens == 4 + 2  # the target of two tokens has one left, too short to measure
    assert [part.rows[0].sequences for part in found.stacks] == [3, 2]
    assert decoder.notes == ("1 sequences of fewer than two tokens were left out.",)
    assert found.notes == ("decoder: 1 sequences of fewer than two tokens were left out.",)


def test_two_towers_have_tokens_of_their_own() -> None:
    entry = BY_NAME["clip"]
    batch = entry.batch()
    batch["input_ids"][:, 0], batch["input_ids"][0, 5] = 3, 4  # start and end, named in a part of the configuration
    text, vision = unsmooth.scan(entry.model(), batch, metrics=["mean_cosine"], progress=False).stacks
    assert text.rows[0].tokens == 4 + 3  # the text of two tokens has one left
    assert vision.rows[0].tokens == 3 * 4  # without the class token
    assert (text.stack, vision.stack, vision.layers) == ("text", "vision", (0, 1, 2, 3))


def test_padding_that_takes_part_in_a_siglip_counts_unless_it_is_masked() -> None:
    entry = BY_NAME["siglip"]
    batch = entry.batch()
    masked = unsmooth.scan(entry.model(), batch, metrics=["mean_cosine"], tokens="all", progress=False)
    del batch["attention_mask"]
    plain = unsmooth.scan(entry.model(), batch, metrics=["mean_cosine"], tokens="all", progress=False)
    assert [one.stacks[0].rows[0].tokens for one in (masked, plain)] == [12, 18]


@pytest.mark.parametrize(
    ("model", "fields", "ran", "missing"),
    [
        ("t5-relu", ["input_ids", "attention_mask"], "encoder", "decoder_input_ids"),
        ("whisper", ["input_features"], "encoder", "decoder_input_ids"),
        ("clip", ["pixel_values"], "vision", "input_ids"),
        ("siglip", ["input_ids", "attention_mask"], "text", "pixel_values"),
    ],
)
def test_data_of_one_stack_runs_that_one(model: str, fields: list[str], ran: str, missing: str) -> None:
    entry = BY_NAME[model]
    batch = {field: entry.batch()[field] for field in fields}
    data = batch[fields[0]] if len(fields) == 1 else batch
    built = entry.model()
    found = unsmooth.scan(built, data, metrics=["mean_cosine"], name="it", progress=False)
    assert (found.name, found.stack, found.stacks) == (f"it · {ran}", ran, ())
    (note,) = found.notes
    assert note.endswith(f"stack was not run: the data has no '{missing}'.")
    whole = unsmooth.scan(built, entry.batch(), metrics=["mean_cosine"], progress=False)
    if model != "whisper":  # whose frames are now all sound
        alone = [row.mean for row in found.rows]
        assert alone == pytest.approx([row.mean for row in whole.curve(stack=ran)], abs=1e-6)


def test_a_decoder_needs_its_encoder() -> None:
    entry = BY_NAME["t5-relu"]
    batch = {"decoder_input_ids": entry.batch()["decoder_input_ids"]}
    with pytest.raises(UnsmoothError, match="Expected 'input_ids' in each batch, which the encoder reads"):
        unsmooth.scan(entry.model(), batch, progress=False)


def test_a_pattern_scans_one_stack_of_a_whole_model() -> None:
    entry = BY_NAME["t5-relu"]
    built = entry.model()
    found = unsmooth.scan(built, entry.batch(), blocks="decoder.block.*", metrics=["mean_cosine"], progress=False)
    whole = unsmooth.scan(built, entry.batch(), metrics=["mean_cosine"], progress=False)
    assert found.rows == whole.stacks[1].rows


def test_a_mask_of_another_stack_is_named() -> None:
    entry = BY_NAME["t5-relu"]
    built, batch = entry.model(), entry.batch()
    of_encoder = {"token_mask": batch["attention_mask"].bool()}
    options = {"metrics": ["mean_cosine"], "tokens": "all", "progress": False}
    note = "The data's 'token_mask' is of other tokens than those measured: theirs would be 'decoder_token_mask'."
    found = unsmooth.scan(built, batch | of_encoder, blocks="decoder.block.*", **options)
    assert note in found.notes
    assert not unsmooth.scan(built, batch | of_encoder, **options).notes
    other = {"decoder_special_tokens_mask": batch["decoder_input_ids"] == 0}
    content = options | {"tokens": "content"}
    found = unsmooth.scan(built, batch | other, blocks="encoder.block.*", **content)
    assert any("'decoder_special_tokens_mask' is of other tokens" in one for one in found.notes)
    assert not unsmooth.scan(built, batch | other, blocks="encoder.block.*", **options).notes


def test_sites_of_one_stack_are_measured_there() -> None:
    entry = BY_NAME["t5-relu"]
    found = unsmooth.scan(entry.model(), entry.batch(), sites=("residual", "cross"), progress=False)
    assert {row.stack for row in found.rows if row.site == "cross"} == {"decoder"}
    assert [tuple(part.sites) for part in found.stacks] == [("residual",), ("residual", "cross")]
    with pytest.raises(UnsmoothError, match="a site that clip blocks have"):
        unsmooth.scan(BY_NAME["clip"].model(), BY_NAME["clip"].batch(), sites=("cross",), progress=False)


def test_the_whole_has_the_rows_of_all_and_each_stack_its_own_findings() -> None:
    entry = BY_NAME["t5-relu"]
    found = unsmooth.scan(entry.model(), entry.batch(), name="t5", baseline=True, progress=False)
    frame = found.to_frame()
    assert list(frame.columns[:4]) == ["stack", "layer", "site", "metric"]
    assert set(frame["stack"]) == {"encoder", "decoder"}
    assert "stage" not in frame
    assert [part.name for part in found.stacks] == ["t5 · encoder", "t5 · decoder"]
    assert found.rows == found.stacks[0].rows + found.stacks[1].rows
    assert found.changes == {}
    for part in found.stacks:
        first, *_, last = part.curve("mean_cosine")
        assert part.changes["mean_cosine"].mean == pytest.approx(last.mean - first.mean)
        assert part.baseline is not None
        assert part.baseline.stack == part.stack
        assert f"{part.stack.capitalize()}: {part.sentence}" in found.sentence
        assert [one.layer for one in part.confounds] == list(part.layers)
    # Lengths differ, and so does what chance gives.
    chances = [part.metrics["token_similarity"].chance for part in found.stacks]
    assert chances[0] != chances[1]
    assert found.metrics["token_similarity"].chance is None
    assert found.metrics["mean_cosine"].chance == 0
    assert found.manifest["model"]["stacks"] == {"encoder": 3, "decoder": 2}
    with pytest.raises(UnsmoothError, match=r"one stack \(encoder, decoder\) but got none"):
        found.curve()
    with pytest.raises(UnsmoothError, match=r"a known stack of this scan but got 'encodr'. Did you mean 'encoder'"):
        found.curve(stack="encodr")


def test_saved_and_loaded(tmp_path: Any) -> None:
    entry = BY_NAME["t5-relu"]
    found = unsmooth.scan(entry.model(), entry.batch(), sites=("residual", "cross"), baseline=True, progress=False)
    found.save(tmp_path)
    again = unsmooth.load_scan(tmp_path)
    assert again.rows == found.rows
    assert again.sentence == found.sentence
    for part, other in zip(found.stacks, again.stacks, strict=True):
        assert (part.name, part.rows, part.changes, part.confounds) == (
            other.name,
            other.rows,
            other.changes,
            other.confounds,
        )
        assert part.baseline is not None
        assert other.baseline is not None
        assert part.baseline.rows == other.baseline.rows
    content = json.loads((tmp_path / "scan.json").read_text())
    assert "rows" not in content["stacks"][0]


def test_a_model_with_one_stack_looks_as_before(tmp_path: Any) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    found = unsmooth.scan(nn.TransformerEncoder(layer, 2), torch.randn(4, 5, 8), progress=False)
    assert list(found.to_frame().columns[:3]) == ["layer", "site", "metric"]
    found.save(tmp_path)
    content = json.loads((tmp_path / "scan.json").read_text())
    assert not {"stack", "stacks"} & set(content)
    assert not {"stack", "stage"} & set(content["rows"][0])
    assert found.parts == (found,)


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        ("mean_cosine@encoder:last>-2", "encoder"),
        ("mean_cosine@decoder:first<2", "decoder"),
        ("mean_cosine@decoder : any : cross > -2", "decoder"),
        ("mean_cosine@1:cross>-2", "decoder"),
        ("mean_cosine>-2", "encoder"),
        ("mean_cosine@last>2", None),
    ],
)
def test_conditions_on_a_stack(text: str, stack: str | None) -> None:
    entry = BY_NAME["t5-relu"]
    found = unsmooth.scan(
        entry.model(), entry.batch(), metrics=["mean_cosine"], sites=("residual", "cross"), progress=False
    )
    row = Condition.parse(text).holds(found)
    assert (None if row is None else row.stack) == stack


def test_a_condition_without_a_stack_is_about_any() -> None:
    entry = BY_NAME["t5-relu"]
    found = unsmooth.scan(entry.model(), entry.batch(), metrics=["mean_cosine"], progress=False)
    encoder, decoder = (part.curve()[-1].mean for part in found.stacks)
    between = (encoder + decoder) / 2
    row = Condition.parse(f"mean_cosine@last>{between}").holds(found)
    assert row is not None
    assert row.stack == ("encoder" if encoder > decoder else "decoder")
    with pytest.raises(UnsmoothError, match="a known stack of this scan but got 'text'"):
        Condition.parse("mean_cosine@text:last>0").holds(found)


def test_stages_of_a_swin() -> None:
    entry = BY_NAME["swin-shifted"]
    metrics = ["mean_cosine", "token_similarity", "escalation_rate", "linear_cka"]
    found = unsmooth.scan(entry.model(), entry.batch(), metrics=metrics, progress=False)
    frame = found.to_frame()
    assert list(frame.columns[:2]) == ["stage", "layer"]
    tokens = frame[frame["metric"] == "mean_cosine"].set_index("layer")["tokens"]
    assert tokens.tolist() == [3 * 64] * 3 + [3 * 16] * 2 + [3 * 4]
    for metric in ("escalation_rate", "linear_cka"):  # no layer before, or one of other tokens
        assert [row.layer for row in found.curve(metric)] == [1, 2, 4]
    assert found.metrics["token_similarity"].chance is None
    assert "differs between stages" in found.metrics["token_similarity"].chance_note
    assert found.metrics["mean_cosine"].chance == 0
    first, *_, last = found.curve("mean_cosine")
    assert found.changes["mean_cosine"].mean == pytest.approx(last.mean - first.mean)
    assert any(
        note.startswith("3 stages: between them the number of tokens or their width changes") for note in found.notes
    )


def test_what_stands_out_in_a_later_stage_is_named_there() -> None:
    entry = BY_NAME["swin-shifted"]
    model = entry.model()

    def spoil(module: nn.Module, args: Any, output: Any) -> Any:
        hidden, *rest = output
        hidden = hidden.clone()
        hidden[..., 40] = 1e3
        return (hidden, *rest)

    handle = model.encoder.layers[2].blocks[0].register_forward_hook(spoil)
    found = unsmooth.scan(model, entry.batch(), progress=False)
    handle.remove()
    named = {one.layer: [entry.dimension for entry in one.outlier_dimensions] for one in found.confounds}
    assert 40 in named[5]
    assert all(40 not in dimensions for layer, dimensions in named.items() if layer < 5)


def test_masks_of_both_torch_stacks_are_read_off_the_batch() -> None:
    entry = BY_NAME["torch-both-post-batch-first"]
    found = unsmooth.scan(entry.model(), [entry.batch()], metrics=["mean_cosine"], progress=False)
    wanted = [int(real_tokens(lengths).sum()) for lengths in ((6, 4, 2), (2, 5, 3))]
    assert [part.rows[0].tokens for part in found.stacks] == wanted


def test_several_batches_add_up_in_each_stack() -> None:
    entry = BY_NAME["t5-relu"]
    batch = entry.batch()
    one = unsmooth.scan(entry.model(), batch, metrics=["mean_cosine"], progress=False)
    three = unsmooth.scan(entry.model(), batch, metrics=["mean_cosine"], batch_size=1, progress=False)
    for row, other in zip(one.rows, three.rows, strict=True):
        assert row.mean == pytest.approx(other.mean, abs=1e-6)
        assert (row.stack, row.layer, row.sequences, row.tokens) == (
            other.stack,
            other.layer,
            other.sequences,
            other.tokens,
        )
