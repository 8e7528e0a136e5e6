"""What remedies cost: all are timed, rows are kept, and every model is compiled for itself."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from benchmarks.remedy_cost import CPU, Bench
from benchmarks.remedy_jobs import VARIANTS, Job, Variant, all_jobs
from benchmarks.remedy_steps import Size, as_called, make_model
from torch import Tensor, nn
from torch.fx import GraphModule

import unsmooth
from benchmarks import remedy_cost
from unsmooth.errors import UnsmoothError
from unsmooth.remedies import names

TINY = Size(layers=3, patch=16, batch=2, images=4, rounds=2, steps=1)


def test_every_remedy_is_timed() -> None:
    assert sorted({variant.name for every in VARIANTS.values() for variant in every}) == names()


@pytest.mark.parametrize(
    ("kind", "variant"),
    [(kind, variant) for kind, every in VARIANTS.items() for variant in every],
    ids=lambda one: one if isinstance(one, str) else one.label,
)
def test_the_model_that_is_timed_can_have_it(kind: str, variant: Variant) -> None:
    unsmooth.apply(make_model(CPU, kind, "cpu"), variant.name, **variant.options)


@pytest.mark.parametrize("job", [Job(kind) for kind in VARIANTS], ids=lambda job: job.norm)
def test_a_step_learns(job: Job) -> None:
    step = Bench(TINY, "cpu", regional=False).step(job, compiled=False)
    before = [parameter.detach().clone() for parameter in step.model.parameters()]
    step.ready()
    assert all(not torch.equal(one, other) for one, other in zip(before, step.model.parameters(), strict=True))


class Timed:
    """A step that takes no time."""

    made: ClassVar[list[Any]] = []

    def __init__(self, *given: Any) -> None:
        self.made.append(given)

    def ready(self, *, captured: bool = True) -> Timed:
        return self

    def seconds(self, steps: int) -> float:
        return 0.5


@pytest.fixture
def cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command without the time it takes; what it wrote, and how it ended."""
    monkeypatch.setattr(remedy_cost, "Step", Timed)
    monkeypatch.setattr(remedy_cost, "commit", lambda: {"commit": "now", "changed": False})
    monkeypatch.setattr(Timed, "made", [])
    out = tmp_path / "cost.json"

    def run(*words: str) -> tuple[int, dict[str, Any], int]:
        Timed.made.clear()
        cache = str(tmp_path / "cache")
        code = remedy_cost.main([*words, "--out", str(out), "--cache", cache])
        return code, json.loads(out.read_text()), len(Timed.made)

    run.out = out
    return run


ONLY = ("--only", "layerscale", "--only", "spa")


def remedies(found: dict[str, Any]) -> list[str]:
    return [row["remedy"] for mode in found["modes"] for row in mode["rows"]]


def test_rows_say_their_commit_and_are_measured_once(cost: Any) -> None:
    code, found, _ = cost(*ONLY)
    assert code == 0
    assert remedies(found) == ["none (the noise)", "layerscale", "none (the noise)", "spa"]
    assert all(row["commit"] == "now" and row["over_plain"] == 1.0 for row in found["modes"][0]["rows"])
    assert list(found["modes"][0]["plain_seconds"]) == ["pre-norm", "pre-norm, causal"]
    assert cost(*ONLY) == (0, found, 0)


def test_what_is_asked_for_later_comes_beside(cost: Any) -> None:
    cost("--only", "spa")
    _, found, made = cost("--only", "layerscale")
    assert made == 3  # plain, plain beside itself, the remedy
    assert remedies(found) == ["none (the noise)", "layerscale", "none (the noise)", "spa"]


def test_again_is_of_what_is_asked_for(cost: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cost(*ONLY)
    monkeypatch.setattr(remedy_cost, "commit", lambda: {"commit": "later", "changed": False})
    _, found, _ = cost("--only", "spa", "--again")
    rows = found["modes"][0]["rows"]
    assert [row["commit"] for row in rows] == ["now", "now", "later", "later"]


def test_rows_that_do_not_say_their_commit_are_measured_again(cost: Any) -> None:
    _, found, _ = cost("--only", "spa")
    for row in found["modes"][0]["rows"]:
        del row["commit"]
    cost.out.write_text(json.dumps(found))
    assert cost("--only", "spa")[2] == 3


def test_rows_of_other_settings_are_not_mixed(cost: Any) -> None:
    cost("--only", "spa")
    with pytest.raises(UnsmoothError, match=r"same settings in .* another step"):
        cost("--only", "spa", "--patch", "8")
    assert "17 tokens" in cost("--only", "spa", "--patch", "8", "--again")[1]["step"]


def test_compiling_alone_measures_nothing(cost: Any) -> None:
    assert remedy_cost.main(["--only", "spa", "--compile-only", "--out", str(cost.out)]) == 0
    assert not Timed.made
    assert not cost.out.exists()


def test_a_run_that_is_cut_off_keeps_its_rows(cost: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        measure = remedy_cost.measure

        def cut(job: Job, *rest: Any) -> dict[str, Any]:
            if job.variant is not None and job.variant.name == "spa":
                raise KeyboardInterrupt
            return measure(job, *rest)

        patched.setattr(remedy_cost, "measure", cut)
        with pytest.raises(KeyboardInterrupt):
            cost(*ONLY)
    assert remedies(json.loads(cost.out.read_text())) == ["none (the noise)", "layerscale", "none (the noise)"]
    code, found, made = cost(*ONLY)
    assert (code, made) == (0, 2)
    assert remedies(found)[-1] == "spa"


def test_too_few_minutes(cost: Any) -> None:
    cost("--only", "spa")
    code, found, made = cost(*ONLY, "--minutes", "0")
    assert (code, made) == (3, 0)
    assert remedies(found) == ["none (the noise)", "spa"]
    assert cost("--only", "spa", "--minutes", "0")[0] == 0  # nothing was left


def test_what_a_graph_cannot_hold_is_never_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    class Asked(Timed):
        def ready(self, *, captured: bool = True) -> Timed:
            asked.append((self.made[-1][0], captured))
            return self

    monkeypatch.setattr(Timed, "made", [])
    monkeypatch.setattr(Bench, "step", lambda self, job, compiled: Asked(job.row(compiled)["remedy"]))
    job = next(one for one in all_jobs(["softdecay"]) if one.variant is not None)
    row = remedy_cost.measure(job, Timed(), Bench(TINY, "cuda", regional=False), compiled=False)
    assert asked == [("softdecay", False), ("none (the noise)", False)]
    assert (row["over_plain"], row["not_captured"]) == (1.0, job.not_captured)
    row = remedy_cost.measure(job, Timed(), Bench(TINY, "cpu", regional=False), compiled=False)
    assert "not_captured" not in row


def test_what_fails_is_a_row_until_it_does_not(cost: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("not in a graph\nat line 3")

    with monkeypatch.context() as patched:
        patched.setattr(remedy_cost, "ratio", fails)
        _, found, _ = cost("--only", "spa")
    assert [row["failed"] for row in found["modes"][0]["rows"]] == ["not in a graph"] * 2
    _, found, _ = cost("--only", "spa")
    assert [row.get("failed") for row in found["modes"][0]["rows"]] == [None, None]


def test_a_cpu_step_is_eager(cost: Any) -> None:
    with pytest.raises(UnsmoothError, match="eager"):
        cost("--modes", "compiled")


class Block(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


class Stack(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList([Block(factor), Block(factor)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.encoder.layers:
            x = block(x)
        return x


@pytest.mark.parametrize("how", ["compiled", "regional"])
def test_every_model_is_compiled_for_itself(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs: list[int] = []

    def backend(graph: GraphModule, given: list[Any]) -> GraphModule:
        inputs.append(len(given))
        return graph

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    factors = range(1, 12)  # more than Dynamo compiles of one function by its default
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=False):
        for factor in factors:
            assert as_called(Stack(float(factor)), how)(torch.ones(1)).item() == factor**2
    # One graph each, both blocks by the same one; and its factor is a constant, not one more input.
    assert inputs == [1] * len(factors)
