"""What is compiled for a captured step: the numbers of the modules as they are, and nothing left behind."""

from __future__ import annotations

import copy
import functools
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.training.tiny_runs import tiny
from unsmooth.training import RunFolder
from unsmooth.training.capture import compiled
from unsmooth.training.place import Place
from unsmooth.training.run import Run

REMEDIES = ["", "sharpen", "deescalate(learn='layer')", "neutreno"]


@pytest.fixture
def quick_compiler(monkeypatch: pytest.MonkeyPatch):
    """Tracing and differentiating as always, without generating machine code."""
    torch._dynamo.reset()
    plain = torch.compile

    def compile_(module: nn.Module, **options: object) -> None:
        module._compiled_call_impl = plain(module._call_impl, backend="aot_eager")

    monkeypatch.setattr(nn.Module, "compile", compile_)
    monkeypatch.setattr(torch, "compile", functools.partial(plain, backend="aot_eager"))
    yield
    torch._dynamo.reset()


def _run(folder: Path, remedy: str) -> Run:
    # Tracing RandAugment takes seconds; its own tests do so.
    changes = {"network__depth": 4, "augment__rand": "", "engine__precision": "float64"}
    config = tiny(**changes, remedies=(remedy,) if remedy else ())
    place = RunFolder(folder)
    place.create(config)
    run = Run(config, place, Place(torch.device("cpu")))
    with torch.no_grad():
        for parameter in run.engine.parameters:  # no block may pass for another
            parameter.add_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())) * 0.1
            )
    return run


@pytest.mark.parametrize("remedy", REMEDIES)
def test_compiled_numbers_are_those_of_the_modules(tmp_path: Path, remedy: str, quick_compiler) -> None:
    run = _run(tmp_path / "run", remedy)
    engine, before = run.engine, copy.deepcopy(run.engine.model.state_dict())
    found = []
    for wanted in (False, True):
        run.engine.model.load_state_dict(before)
        with compiled(engine, wanted):
            loss = run.task.loss(engine.model, torch.tensor(1))
            loss.backward()
        found.append((loss.detach(), [one.grad.clone() for one in engine.parameters if one.grad is not None]))
        engine.optimiser.zero_grad(set_to_none=True)
    (one, gradients), (other, others) = found
    torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
    for expected, got in zip(gradients, others, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def test_nothing_stays_compiled(tmp_path: Path, quick_compiler) -> None:
    run = _run(tmp_path / "run", "")
    with compiled(run.engine, True):
        held = [module for module in run.engine.model.modules() if module._compiled_call_impl is not None]
        assert len(held) == 4
        assert "embedded" in vars(run.engine.model)
    assert all(module._compiled_call_impl is None for module in run.engine.model.modules())
    assert run.task.input._compiled_call_impl is None
    assert "embedded" not in vars(run.engine.model)
    assert "decided" not in vars(run.engine)


def test_all_blocks_share_what_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.testing import CompileCounter

    from unsmooth.models import find_anatomy

    torch._dynamo.reset()
    counter, run = CompileCounter(), _run(tmp_path / "run", "deescalate(learn='layer')")
    for block in find_anatomy(run.engine.model).blocks.values():
        block.compile(backend=counter)
    run.task.loss(run.engine.model, torch.tensor(1))
    # The first block drops no path; the other three are one and the same to the compiler.
    assert counter.frame_count == 2
