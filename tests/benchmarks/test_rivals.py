"""The comparison with other tools, without the other tools."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.rivals import harness
from benchmarks.rivals.cases import PADDED, UNEQUAL, all_cases, read, save, truth
from benchmarks.rivals.cells import MODELS, OURS, RIVAL, TEXTS, TOKENS, TOOL_OF, TOOLS, Cell, Store, plan
from benchmarks.rivals.page import page
from benchmarks.rivals.tools import torchmetrics_pairwise, unsmooth_scan
from torch import Tensor, nn

CASES = all_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_unsmooth_answers_every_case_as_float64_does(case: Any) -> None:
    """Pair by pair in float64, which is how `truth` is written."""
    expected = truth(case)
    for name, value in unsmooth_scan.answers(case).items():
        assert value == pytest.approx(expected[name], rel=2e-6, abs=2e-7), name


def test_the_truth_about_identical_tokens_is_known_without_a_computer() -> None:
    same = next(case for case in CASES if case.name == "identical tokens")
    expected = {"mean_cosine": 1, "mean_cosine_with_self": 1, "cosine_spread": 0, "effective_rank": 1, "stable_rank": 1}
    assert truth(same) == pytest.approx(expected)
    # 4 tokens, the diagonal zeroed and still divided by: 3/4.
    assert torchmetrics_pairwise.answers(same)["mean_cosine"] == pytest.approx(0.75)


def test_padding_reaches_tools_without_masks_only_where_padding_is_tried() -> None:
    by_name = {case.name: case for case in CASES}
    assert {len(text) for text in by_name[PADDED].texts()} == {64}
    assert tuple(len(text) for text in by_name[UNEQUAL].texts()) == by_name[UNEQUAL].lengths


def test_cases_survive_a_file(tmp_path: Path) -> None:
    save(CASES, tmp_path / "cases.pt")
    for before, after in zip(CASES, read(tmp_path / "cases.pt"), strict=True):
        assert (after.name, after.lengths, after.dtype) == (before.name, before.lengths, before.dtype)
        np.testing.assert_array_equal(after.tokens_BND, before.tokens_BND)


class Slow(nn.Module):
    """Takes ten milliseconds by a clock of its own."""

    now = 0.0

    def forward(self, input_ids: Tensor) -> Tensor:
        Slow.now += 0.01
        return input_ids


class Hooked(Slow):
    """With a part inside that hooks can be hung on."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Identity()

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.part(super().forward(input_ids))


def hooked_measure(model: nn.Module, turns: harness.Turns) -> int:
    """Half a second once, two milliseconds in a hook and one behind each pass; a storm in one step."""

    def hook(*_: object) -> None:
        Slow.now += 0.002

    Slow.now += 0.5
    handle = model.part.register_forward_hook(hook)  # type: ignore[operator]
    for seen, step in enumerate(turns):
        model(**step)
        Slow.now += 0.001 if seen != 4 else hooked_measure.storm  # type: ignore[attr-defined]
    handle.remove()
    return seen + 1


def test_what_is_added_is_told_from_the_plain_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "CLOCKS", {"cpu": lambda: Slow.now})
    steps, model = [{"input_ids": torch.zeros(1, 2)}] * 20, Hooked()
    rounds = []
    for storm in (7.0, 0.001):
        monkeypatch.setattr(hooked_measure, "storm", storm, raising=False)
        spent, found = harness.one_round(hooked_measure, model, harness.twin_of(model), steps)
        assert found == 20
        rounds.append(spent["cpu"])
    added = 0.5 + 20 * 0.003
    assert rounds[0]["own"] == pytest.approx(added + 6.999)
    assert harness.least(rounds) == pytest.approx({"plain": 0.2, "added": added, "outside": 0.5, "own": added})
    assert "forward" not in vars(model)
    assert "lambda" not in nn.Module.register_forward_hook.__qualname__


def test_a_tool_that_never_asks_for_a_step_after_the_last_is_measured_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "CLOCKS", {"cpu": lambda: Slow.now})

    def measure(model: nn.Module, turns: harness.Turns) -> None:
        steps = iter(turns)
        for _ in range(len(turns)):
            model(**next(steps))
            Slow.now += 0.003

    spent, _ = harness.one_round(measure, Slow(), Slow(), [{"input_ids": torch.zeros(1, 2)}] * 16)
    found = harness.least([spent["cpu"]])
    assert found["added"] == pytest.approx(16 * 0.003)
    assert found["own"] == pytest.approx(16 * 0.003)


def test_the_twin_has_the_same_weights_and_none_of_the_hooks() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    twin = harness.twin_of(model)
    model[0].register_forward_hook(lambda *_: torch.full((1, 2), 7.0))
    assert twin[0].weight is model[0].weight
    assert not torch.equal(twin(torch.ones(1, 2)), model(torch.ones(1, 2)))


@pytest.mark.skipif(not harness.CLEAR.exists(), reason="needs the kernel's high-water mark of memory")
def test_the_peak_is_that_of_the_run_alone() -> None:
    earlier = torch.ones(40 << 18).sum()  # 40 MiB, before
    low = harness.peak_of(lambda: time.sleep(0))
    high = harness.peak_of(lambda: torch.ones(20 << 18).sum() + earlier)
    assert 15 < high - low < 30


def test_every_cell_has_its_own_key_and_a_tool() -> None:
    cells = list(plan(MODELS, TOKENS, TEXTS))
    assert len({cell.key for cell in cells}) == len(cells)
    assert {TOOL_OF[cell.way] for cell in cells} <= set(TOOLS)
    for model in MODELS:
        for tokens in TOKENS:
            for texts in TEXTS:
                assert {RIVAL, OURS} <= {
                    cell.way for cell in cells if (cell.model, cell.tokens, cell.texts) == (model, tokens, texts)
                }


def test_a_store_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "cells.json"
    Store(path, "numbers").put("one", {"value": float("nan")})
    again = Store(path, "numbers")
    assert "one" in again
    assert "two" not in again
    assert json.loads(path.read_text())["cells"]["one"] == {"value": None}


def cost_cell(way: str, batch: int, texts: int, own: float, mib: float) -> dict[str, Any]:
    cell = Cell("all-MiniLM-L6-v2", 512, texts, way, batch)
    seconds = {clock: {"plain": 10.0, "added": own - 0.3, "outside": 0.0, "own": own} for clock in ("cpu", "wall")}
    return vars(cell) | {
        "seconds": seconds,
        "memory": {"added_mib": mib},
        "found": {"mean_cosine_with_self": [0.5, 0.25]},
        "versions": {"torch": "2"},
    }


def test_the_page_says_what_the_cells_say() -> None:
    cells = [
        cost_cell(RIVAL, 1, 64, 6.0, 960.0),
        cost_cell(OURS, 16, 64, 0.5, 12.0),
        cost_cell(RIVAL, 1, 512, 40.0, 7000.0),
        cost_cell(OURS, 16, 512, 10.0, 12.0),
        cost_cell(OURS, 1, 64, 3.0, 2.0),
        cost_cell(OURS, 1, 512, 0.2, 0.5),
    ]
    case = CASES[0]
    correctness = {
        "cases": {case.name: case.about},
        "truth": {case.name: {"mean_cosine": 0.5}},
        "cells": {
            "unsmooth_scan": {"answers": {case.name: {"mean_cosine": 0.500001}}, "versions": {"torch": "2"}},
            "torchmetrics_pairwise": {"answers": {case.name: {"mean_cosine": 0.4}}, "versions": {"torch": "2"}},
            "embedding_condensation": {"answers": {case.name: "ValueError: no"}, "versions": {"torch": "2"}},
        },
    }
    text = page(correctness, {"cells": {str(number): cell for number, cell in enumerate(cells)}})
    assert "| plain tokens | 0.50000 | 0.50000 | **0.40000** |" in text
    assert "64 texts 12.0x" in text
    assert (
        "one text at a time: all-MiniLM-L6-v2 512 tokens 64 texts 2.0x; all-MiniLM-L6-v2 512 tokens 512 texts 200.0x"
        in text
    )
    assert "200.0x. So at least 5x less in 1 of 2" in text
    assert "| unsmooth, same job | 16 | 10.00 | 0.500 | 5.0% | +0.20 | +12 |" in text
    assert "512 texts 4.0x. So at least 5x less in 1 of 2" in text
    assert "from 960 to 7000 MiB, ours from 12 to 12" in text
    assert "the 4 layer means of both agree to 0e+00" in text
