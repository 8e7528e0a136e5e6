"""Checks of coming and going: undo, fold, copies, checkpoints."""

from __future__ import annotations

import copy
import io
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.remedies.harness import Case, check, close, outputs, same
from tests.remedies.snapshot import Snapshot
from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.remedies.block import remedies_of
from unsmooth.remedies.verbs import applied


@check("undo is bit-equal")
def undo(case: Case) -> None:
    """Weights, keys and their order, parameters, classes, attributes and hooks are what they were."""
    model = case.host.model()
    before, plain = Snapshot.of(model), outputs(case, model)
    case.apply(model)
    outputs(case, model)
    assert remedies.undo(model) is model
    before.check(model)
    same(outputs(case, model), plain, "after undo")
    assert applied(model) == []


@check("copies are independent")
def copies(case: Case) -> None:
    """A copy does the same, has hooks of its own, and can be undone without the original noticing."""
    model = case.remedied()
    plain = case.host.model()
    wanted = outputs(case, model)
    twin = copy.deepcopy(model)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    for other in (twin, loaded):
        same(outputs(case, other), wanted, "a copy")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        same(outputs(case, other), wanted, "a copy after the original was changed")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.div_(1.5)
        remedies.undo(other)
        Snapshot.of(plain).check(other, copied=True)
    close(outputs(case, model), wanted, "the original after its copy was undone")


@check("folds, or says why not")
def fold(case: Case) -> None:
    """Plain weights with the same outputs, saved and loaded by any tool; or a refusal that changes nothing."""
    model = case.remedied()
    wanted, plain = outputs(case, model), case.host.model()
    if not _folds(model):
        before = Snapshot.of(model)
        with pytest.raises(UnsmoothError, match="does not: "):
            remedies.fold(model)
        before.check(model)
        same(outputs(case, model), wanted, "after a refused fold")
        return
    assert remedies.fold(model) is model
    Snapshot.of(plain).check_form(model, copied=True)
    folded = outputs(case, model)
    close(folded, wanted, "folded", tolerance=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        _round_trip(case, model, plain, Path(folder), folded)


def _folds(model: torch.nn.Module) -> bool:
    homes = [home for module in model.modules() if (home := remedies_of(module)) is not None]
    return all(edit.why_not_foldable() is None for home in homes for edit in home.edits().values())


def _round_trip(case: Case, model: Any, plain: Any, folder: Path, folded: torch.Tensor) -> None:
    if case.host.hugging_face:
        model.save_pretrained(folder)
        same(outputs(case, type(model).from_pretrained(folder).eval()), folded, "save_pretrained")
    # Embeddings that are tied share memory, which safetensors refuses.
    save_file({key: value.clone() for key, value in model.state_dict().items()}, folder / "weights.safetensors")
    plain.load_state_dict(load_file(folder / "weights.safetensors"))
    same(outputs(case, plain), folded, "safetensors")


@check("state_dict round-trips")
def state_dict(case: Case) -> None:
    """Its own checkpoint, and the plain model's, load into a remedied one, strictly; undone, it is what was loaded."""
    model = case.remedied()
    other = case.remedied(trained=False, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        save_file({key: value.clone() for key, value in model.state_dict().items()}, path)
        other.load_state_dict(load_file(path), strict=True)
    same(outputs(case, other), outputs(case, model), "own checkpoint")
    plain = case.host.model()
    other = case.remedied(trained=False, seed=1)
    other.load_state_dict(plain.state_dict(), strict=True)
    wanted = case.remedied(trained=False, loaded=True)
    close(outputs(case, other), outputs(case, wanted), "plain checkpoint", tolerance=1e-4)
    remedies.undo(other)
    state, loaded = other.state_dict(), plain.state_dict()
    assert list(state) == list(loaded)
    assert all(torch.equal(state[key], loaded[key]) for key in loaded), "undone, weights are not those loaded"
