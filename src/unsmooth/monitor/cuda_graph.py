"""A look as one CUDA graph: a host that hands out the kernels of a small model one by one keeps its GPU waiting.

Kernels are recorded in the middle of somebody else's training: where that fails, nothing must be left.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.models.walk import modules_of
from unsmooth.scanning.collect import Collector

# A larger model keeps a GPU busy while its kernels are handed out, and the graph keeps the memory of a pass.
_MOST_WEIGHTS, _MOST_BYTES = 1 << 27, 1 << 28
# Once in so many looks the model is called as well, and what it gives compared.
_COMPARED = 16
# A model that changes all the time is better called.
_MOST_CAPTURES = 4


class Circumstances:
    """All that a pass through a model depends on and that can be seen from outside, apart from the weights' values.

    A captured pass reads the same memory again and runs no Python: it is what the model would do only as long as
    nobody exchanged a weight, a module or an attribute.

    Args:
        model: As it is now.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = modules_of(model)
        tensors = [one for module in modules for one in (*module._parameters.values(), *module._buffers.values())]
        # The objects themselves are kept: a number may be given the address of one that is gone.
        self._objects: list[Any] = [*modules, *tensors]
        for module in modules:
            self._objects += vars(module).values()
        self._numbers = [0 if one is None else one.data_ptr() for one in tensors]
        self._numbers += [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules]
        self._modes = _modes()

    def same(self, other: Circumstances | None) -> bool:
        """Whether nothing has changed."""
        return (
            other is not None
            and self._modes == other._modes
            and self._numbers == other._numbers
            and len(self._objects) == len(other._objects)
            and all(map(is_, self._objects, other._objects))
        )


def _modes() -> tuple[Any, ...]:
    """What torch was told about numbers."""
    return (
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
        _products(),
        torch.get_default_dtype(),
    )


def _products() -> str:
    """How exact those of float32 are."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set by the newer names, which torch refuses to mix with the older ones
        return str(torch.backends.cuda.matmul.fp32_precision)


class Captured:
    """The kernels of one look, and where they leave their results.

    Args:
        collectors: Empty; they hold the results afterwards.
        look: Runs the pass, to the end of the collectors.
        device: A GPU.
    """

    def __init__(self, collectors: Sequence[Collector], look: Callable[[], None], device: torch.device) -> None:
        def kernels() -> None:
            look()
            for collector in collectors:
                collector.evaluate()

        before = torch.cuda.memory_reserved(device)
        self._collectors, self._graph = collectors, record(kernels, device)
        self.bytes = torch.cuda.memory_reserved(device) - before

    def __call__(self) -> list[Collector]:
        """Run them; what is not added up yet is there when the GPU is done."""
        self._graph.replay()
        return [collector.again() for collector in self._collectors]


class Replays:
    """Looks at a model by a graph, as long as that gives what the model would give.

    Args:
        model: The plain module.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._count, self._left = model, 0, _MOST_CAPTURES
        self._captured: Captured | None = None
        self._batch: Any = None
        # When the graph was made, at this look (None where no graph is wanted), and at a call that can be repeated.
        self._then: Circumstances | None = None
        self._now: Circumstances | None = None
        self._calm: Circumstances | None = None

    @property
    def wanted(self) -> bool:
        """Whether a graph is thought of at this look."""
        return self._now is not None

    @contextmanager
    def noticing_waits(self) -> Iterator[list[str]]:
        """What a pass waits for the GPU for; nothing is noticed where no graph is wanted."""
        if not self.wanted:
            yield []
            return
        with waits_told() as waits:
            yield waits

    def was_called(self, *, repeatable: bool) -> None:
        """Tell of a look by a call, and whether a second one without Python's help would leave all as it is too."""
        self._calm = self._now if repeatable else None

    @property
    def possible(self) -> bool:
        """Whether a graph is worth trying: the model was called like this before, and nothing spoke against it."""
        return self._left > 0 and self.wanted and self._calm is not None and self._calm.same(self._now)

    def ready(self, batch: Any) -> Captured | None:
        """The graph of the last looks, if it is still what the model would do with a batch."""
        wanted = self._captured is not None or (self._left > 0 and _fits(self._model))
        self._now = Circumstances(self._model) if wanted else None
        if self._batch is not batch or self._then is None or not self._then.same(self._now):
            self._captured = None
        self._count += 1
        return self._captured

    @property
    def to_be_compared(self) -> bool:
        """Whether it is time to see that the graph still gives what the model gives."""
        return self._count % _COMPARED == 0

    def capture(
        self, batch: Any, collectors: Sequence[Collector], look: Callable[[], None], device: torch.device
    ) -> Captured | None:
        """Have the next looks at a batch be a graph; None where they cannot be one, which nobody needs to know."""
        self._left -= 1
        try:
            captured = Captured(collectors, look, device)
        except Exception:  # what a graph cannot hold; if it is more than that, the call that follows will tell
            captured = None
        if captured is None or captured.bytes > _MOST_BYTES:
            self.give_up()
            return None
        self._captured, self._then, self._batch = captured, self._now, batch
        return captured

    def give_up(self) -> None:
        """No graph from now on, and no memory for one."""
        self._left, self._captured, self._calm, self._batch = 0, None, None, None


def _fits(model: nn.Module) -> bool:
    """A model in plain tensors on one GPU, and not a large one."""
    tensors = [*model.parameters(), *model.buffers()]
    places = {one.device for one in tensors}
    return (
        len(places) == 1
        and places.pop().type == "cuda"
        and all(type(one) in (nn.Parameter, Tensor) for one in tensors)
        and sum(one.numel() for one in tensors) <= _MOST_WEIGHTS
    )


def alike(ones: Sequence[Collector], others: Sequence[Collector]) -> bool:
    """Whether the sums of two looks are those of one model, but for the order in which numbers were added."""
    for one, other in zip(ones, others, strict=True):
        one.settle()
        other.settle()
        if (one.state is None) != (other.state is None):
            return False
        if one.state is not None and other.state is not None:
            pairs = zip(one.state.by_name().values(), other.state.by_name().values(), strict=True)
            if not all(torch.allclose(a, b, rtol=1e-3, atol=1e-6, equal_nan=True) for a, b in pairs):
                return False
    return True


# The allocator asks an unfinished recording which memory is its own, so it must not go away.
_UNFINISHED: list[torch.cuda.CUDAGraph] = []


def record(kernels: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """The kernels that a function hands to a GPU, none of which run; raises what the function does.

    What torch leaves undone where a recording fails (pytorch/pytorch issue 171263) is undone here.
    """
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    current, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(current)
    try:
        with torch.cuda.stream(side), _own_random_numbers(device), _nothing_cached():
            # What other threads do meanwhile, such as one that loads data, is their business.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                kernels()
            except BaseException:
                _end(graph, pool, device)
                raise
            if (problem := _end(graph, pool, device)) is not None:
                raise problem
    finally:
        current.wait_stream(side)
    return graph


def _end(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], device: torch.device) -> RuntimeError | None:
    """End a recording; what went wrong, if anything.

    Of one that failed, what it has begun with the allocator is ended too: else that takes no memory back any more that
    two streams have used.
    """
    try:
        graph.capture_end()
    except RuntimeError as error:
        _UNFINISHED.append(graph)
        with suppress(AttributeError, RuntimeError):
            torch._C._cuda_endAllocateToPool(_index(device), pool)
        return error
    return None


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


@contextmanager
def _own_random_numbers(device: torch.device) -> Iterator[None]:
    """Random numbers of a copy: a generator that was part of a recording that failed can draw no more."""
    generator = torch.cuda.default_generators[_index(device)]
    before = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(before)


@contextmanager
def _nothing_cached() -> Iterator[None]:
    """Under autocast weights are cast anew every time, and not taken from where the training has them."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def waits_told() -> Iterator[list[str]]:
    """What a GPU is waited for, which a recording cannot; torch knows of most of it."""
    before, told = torch.cuda.get_sync_debug_mode(), list[str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield told
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for one in caught:
        if "synchronizing CUDA operation" in str(one.message):
            told.append(str(one.message))
        elif "Synchronization debug mode" not in str(one.message):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
