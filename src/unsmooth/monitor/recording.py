"""Recording kernels as a CUDA graph in the middle of somebody else's training: where it fails, nothing must be left."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

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
