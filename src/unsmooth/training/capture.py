"""The whole step as one CUDA graph: Python and kernel launches are paid for once, at the start of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from unsmooth.models import find_anatomy
from unsmooth.training.step import Step

_WARM_UPS = 3


class Replay:
    """A `Step` captured on a stream of its own, so that several runs may share a GPU.

    Capturing runs a few steps for real: the caller puts the state back afterwards.

    Args:
        step: What to capture: in one graph, or in two where gradients are added up over several micro-batches.
        fused: Blocks and augmentation go through torch.compile first.
    """

    def __init__(self, step: Step, *, fused: bool) -> None:
        self.step = step
        self.stream = torch.cuda.Stream(step.place.device)  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream(step.place.device))
        with torch.cuda.stream(self.stream), compiled(step, fused):
            for _ in range(_WARM_UPS):
                step.accumulate()
                step.update()
            self._graphs = [self._captured(part) for part in self._parts()]
        self.stream.synchronize()

    def _parts(self) -> list[Callable[[], None]]:
        def whole() -> None:
            self.step.accumulate()
            self.step.update()

        return [self.step.accumulate, self.step.update] if self.step.adds_up else [whole]

    def _captured(self, part: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            part()
        return graph

    def accumulate(self) -> None:
        """One micro-batch; with a single graph, the update with it."""
        with torch.cuda.stream(self.stream):
            self._graphs[0].replay()

    def update(self) -> None:
        """Use the gradients."""
        if self.step.adds_up:
            with torch.cuda.stream(self.stream):
                self._graphs[1].replay()


@contextmanager
def compiled(step: Step, wanted: bool) -> Iterator[None]:
    """Blocks, input and the numbers around them, compiled while the context is open; modules are left as they were.

    Blocks one by one, because they are alike: torch compiles the first and knows the rest. What is captured in here
    keeps the compiled kernels; scans and evaluations afterwards see plain modules. Inputs are compiled such that sums
    and products are not contracted: an image is the same to the last grey level as one that was not compiled.
    """
    if not wanted:
        yield
        return
    model, task = step.model, step.task
    with ExitStack() as stack:
        options = {module: {"options": {"emulate_precision_casts": True}} for module in task.fusible()}
        for module in [*find_anatomy(model).blocks.values(), *options]:
            stack.callback(setattr, module, "_compiled_call_impl", module._compiled_call_impl)
            module.compile(**options.get(module, {}))
        for owner, name in (*_methods(model), (step, "decided")):
            stack.callback(delattr, owner, name)
            setattr(owner, name, torch.compile(getattr(owner, name)))
        yield


def _methods(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """What our networks do before their first block."""
    for module in model.modules():
        if callable(getattr(type(module), "embedded", None)):
            yield module, "embedded"
