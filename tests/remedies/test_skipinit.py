from __future__ import annotations

from typing import Any

import pytest
import torch

import unsmooth
from tests.remedies.by_hand import EVERY, Edits, blocks_of, by_hand, exact, near, streams
from tests.remedies.snapshot import Snapshot
from unsmooth.remedies import applied


def scaled(attention: float, mlp: float, norms: bool) -> Edits:
    return Edits(first=lambda x, a: x + attention * a, second=lambda x, m, bottom: x + mlp * m, norms=norms)


def set_alpha(model: Any, *alpha: float) -> Any:
    with torch.no_grad():
        for block in blocks_of(model):
            block.unsmooth.skipinit.alpha.copy_(torch.tensor(alpha, dtype=torch.float64))
    return model


@pytest.mark.parametrize("name", EVERY)
def test_each_branch_has_a_number_of_its_own(name: str) -> None:
    model = exact(name)
    before = Snapshot.of(model)
    unsmooth.apply(model, "skipinit")
    entered, left = streams(name, model)
    assert torch.equal(entered, left), "the identity at the start"
    set_alpha(model, 0.4, -0.3)
    near(name, streams(name, model)[1], by_hand(name, exact(name), scaled(0.4, -0.3, norms=False)))
    assert applied(model)[0].report[0] == pytest.approx({"alpha of attention": 0.4, "alpha of the MLP": -0.3})
    before.check(unsmooth.undo(model))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "neox_parallel"])
def test_kept_norms_let_it_fold(name: str) -> None:
    wanted = by_hand(name, exact(name), scaled(0.4, -0.3, norms=True))
    model = set_alpha(unsmooth.apply(exact(name), "skipinit", norm="keep"), 0.4, -0.3)
    near(name, streams(name, model)[1], wanted)
    near(name, streams(name, unsmooth.fold(model))[1], wanted)


def test_it_is_rezero_with_a_number_per_branch() -> None:
    one = unsmooth.apply(exact("vit"), "skipinit", start=0.3)
    other = unsmooth.apply(exact("vit"), "rezero", start=0.3, share=False)
    assert torch.equal(streams("vit", one)[1], streams("vit", other)[1])
