"""What is compiled for a captured step: the numbers of the modules as they are, and nothing left behind."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from tests.training.tiny_runs import tiny, weights
from unsmooth.training import RunFolder, train
from unsmooth.training.capture import Fusing, How
from unsmooth.training.place import Place
from unsmooth.training.run import Run
from unsmooth.training.tasks import ImageTask


@pytest.fixture
def quick_compiler(monkeypatch: pytest.MonkeyPatch):
    """Tracing and differentiating as always, without generating machine code."""
    torch._dynamo.reset()
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, options=None: plain(function, backend="aot_eager"))
    yield
    torch._dynamo.reset()


def _run(folder: Path, remedy: str, depth: int = 2) -> Run:
    # Tracing RandAugment takes seconds; its own tests do so.
    changes = {"network__depth": depth, "augment__rand": "", "engine__precision": "float64"}
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


@pytest.mark.parametrize(
    ("remedy", "how"),
    [("", "blocks"), ("sharpen", "whole"), pytest.param("deescalate(learn='layer')", "blocks", marks=pytest.mark.slow)],
)
def test_compiled_numbers_are_those_of_the_modules(tmp_path: Path, remedy: str, how: How, quick_compiler) -> None:
    run = _run(tmp_path / "run", remedy)
    if remedy:
        run.task.fusible = list  # type: ignore[method-assign] - the input is the same for all, and takes seconds
    engine, before = run.engine, copy.deepcopy(run.engine.model.state_dict())
    found = []
    for wanted in ("off", how):
        run.engine.model.load_state_dict(before)
        with Fusing(engine, wanted):
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
    with Fusing(run.engine, "blocks"):
        held = [module for module in run.engine.model.modules() if module._compiled_call_impl is not None]
        assert len(held) == 2
        assert "embedded" in vars(run.engine.model)
    assert all(module._compiled_call_impl is None for module in run.engine.model.modules())
    assert run.task.input._compiled_call_impl is None
    assert "embedded" not in vars(run.engine.model)
    assert "decided" not in vars(run.engine)


def test_all_blocks_share_what_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.testing import CompileCounter

    from unsmooth.models import find_anatomy

    torch._dynamo.reset()
    counter, run = CompileCounter(), _run(tmp_path / "run", "deescalate(learn='layer')", 4)
    for block in find_anatomy(run.engine.model).blocks.values():
        block.compile(backend=counter)
    run.task.loss(run.engine.model, torch.tensor(1))
    # The first block drops no path; the other three are one and the same to the compiler.
    assert counter.frame_count == 2


def test_a_run_may_be_compiled_without_being_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_compiler
) -> None:
    monkeypatch.setattr(ImageTask, "fusible", lambda task: [])
    found = []
    for wish in ("off", "on"):
        changes = {"engine__compile": wish, "augment__rand": "", "engine__precision": "float64"}
        (folder,) = train(tiny(steps=2, **changes), tmp_path / wish)
        found.append(weights(folder.path))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-9, atol=1e-12)


def test_one_run_after_another_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter, plain = CompileCounter(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, options=None: plain(function, backend=counter))
    monkeypatch.setattr(ImageTask, "fusible", lambda task: [])
    counts = [0]
    # With a limit of one, torch gives up on the second network for good.
    with torch._dynamo.config.patch(recompile_limit=1):
        for depth, remedy in enumerate(("", "deescalate", "sharpen"), start=1):
            run = _run(tmp_path / remedy, remedy, depth)
            with Fusing(run.engine, "blocks"):
                run.task.loss(run.engine.model, torch.tensor(1))
            counts.append(counter.frame_count)
        assert torch._dynamo.config.recompile_limit == 1
    assert counts == sorted(set(counts)), "each network was compiled"
    torch._dynamo.reset()
