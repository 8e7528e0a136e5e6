"""What one process compiles another has from the cache, also where torch by itself would not keep it."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.compile_ahead import ONE_CORE, cached, forget_choices, share_cache
from torch import Tensor

from benchmarks import compile_ahead


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2.0 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2.0 * grad


def exactly_doubled(x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return Doubled.apply(x.float())


def compile_one(name: str) -> str:
    torch._inductor.config.cpp_cache_precompile_headers = False  # which takes longer than these two kernels
    torch.compile(globals()[name])(torch.ones(3, requires_grad=True)).sum().backward()
    return f"{name} {cached()}"


def tell(name: str) -> str:
    return f"{os.environ[name]} {torch._inductor.config.compile_threads}"


def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return f"slept {seconds}"


ahead = functools.partial(compile_ahead.compile_ahead, workers=2, until=math.inf)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Settings of this process are afterwards as they were."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    inductor = {"fx_graph_cache": True, "unsafe_marked_cacheable_functions": {}, "cpp_cache_precompile_headers": True}
    functorch = {"enable_autograd_cache": True, "autograd_cache_allow_custom_autograd_functions": False}
    with torch._inductor.config.patch(inductor), torch._functorch.config.patch(functorch):
        yield tmp_path


@pytest.mark.slow
def test_what_others_compiled_is_a_hit_here(own_cache: Path) -> None:
    said = list(ahead(compile_one, ["exactly_doubled"], own_cache))
    assert said == ["exactly_doubled {'hits': 0, 'misses': 1, 'bypassed': 0}"]
    share_cache(own_cache)
    torch._dynamo.reset()
    cached()
    assert compile_one("exactly_doubled") == "exactly_doubled {'hits': 1, 'misses': 0, 'bypassed': 0}"


PROGRAM = """
import math, pickle, sys
from pathlib import Path
import torch
from benchmarks.compile_ahead import compile_ahead

def pickled(job):
    return pickle.dumps(torch.contiguous_format).hex()

if __name__ == "__main__":
    assert list(compile_ahead(pickled, [0], Path(sys.argv[1]), 1, math.inf)) == [pickled(0)]
"""


@pytest.mark.slow
def test_keys_are_the_same_in_a_program_that_knows_torch(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    path = os.pathsep.join([str(Path(compile_ahead.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(program), str(tmp_path)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path}, timeout=200)


def test_each_process_has_one_core(tmp_path: Path) -> None:
    before = dict(os.environ)
    assert list(ahead(tell, ["OMP_NUM_THREADS"], tmp_path)) == [f"{ONE_CORE['OMP_NUM_THREADS']} 1"]
    assert dict(os.environ) == before


def test_it_ends_in_time(tmp_path: Path) -> None:
    assert list(ahead(sleep, [600.0], tmp_path, until=time.monotonic())) == []


def test_one_that_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_ahead, "PATIENCE_SECONDS", 0.1)
    assert list(ahead(sleep, [600.0, 600.0], tmp_path)) == []


def test_choices_of_a_busy_gpu_are_forgotten(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    chosen, kernel = tmp_path / "ab" / "one.best_config", tmp_path / "ab" / "one.py"
    chosen.touch()
    kernel.touch()
    forget_choices(tmp_path)
    assert not chosen.exists()
    assert kernel.exists()
