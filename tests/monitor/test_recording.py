"""Recording a CUDA graph: what is left of one that fails. Stand-ins for what a GPU has; `test_cuda_graph` has a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from unsmooth.monitor import cuda_graph

DEVICE = torch.device("cuda", 0)


class Generator:
    """Knows which state it draws from."""

    def __init__(self) -> None:
        self.state = "the training's"

    def graphsafe_get_state(self) -> str:
        return self.state

    def clone_state(self) -> str:
        return "a copy"

    def graphsafe_set_state(self, state: str) -> None:
        self.state = state


class Stream:
    def wait_stream(self, other: object) -> None:
        pass


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU of which a recording ends well, or not where `problem` says so."""
    made = SimpleNamespace(problem=None, begun=None, ended=[], generator=Generator())

    class Graph:
        def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
            made.begun = pool, capture_error_mode, made.generator.state

        def capture_end(self) -> None:
            if made.problem is not None:
                raise made.problem

    cuda = {
        "CUDAGraph": Graph,
        "Stream": lambda device: Stream(),
        "current_stream": lambda device: Stream(),
        "stream": lambda stream: nullcontext(),
        "graph_pool_handle": lambda: (0, 7),
        "default_generators": (made.generator,),
    }
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *given: made.ended.append(given), raising=False)
    monkeypatch.setattr(cuda_graph, "_UNFINISHED", [])
    return made


def fail(error: BaseException) -> None:
    raise error


def test_one_that_succeeds(gpu: SimpleNamespace) -> None:
    seen = []
    cuda_graph.record(lambda: seen.append(torch.is_autocast_cache_enabled()), DEVICE)
    assert gpu.begun == ((0, 7), "thread_local", "a copy")
    assert seen == [False]
    assert torch.is_autocast_cache_enabled()
    assert gpu.generator.state == "the training's"
    assert not gpu.ended
    assert not cuda_graph._UNFINISHED


@pytest.mark.parametrize("error", [RuntimeError("cannot be recorded"), KeyboardInterrupt()])
def test_what_goes_wrong_on_the_way_comes_out(gpu: SimpleNamespace, error: BaseException) -> None:
    gpu.problem = RuntimeError("invalid")
    with pytest.raises(type(error)) as raised:
        cuda_graph.record(lambda: fail(error), DEVICE)
    assert raised.value is error
    assert gpu.ended == [(0, (0, 7))]
    assert len(cuda_graph._UNFINISHED) == 1
    assert gpu.generator.state == "the training's"
    assert torch.is_autocast_cache_enabled()


def test_the_allocator_is_told_only_where_torch_has_not(gpu: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="a shape"):
        cuda_graph.record(lambda: fail(ValueError("a shape")), DEVICE)
    assert not gpu.ended


def test_what_is_found_at_the_end_comes_out(gpu: SimpleNamespace) -> None:
    gpu.problem = RuntimeError("invalid")
    with pytest.raises(RuntimeError, match="invalid"):
        cuda_graph.record(lambda: None, DEVICE)
    assert gpu.ended == [(0, (0, 7))]
