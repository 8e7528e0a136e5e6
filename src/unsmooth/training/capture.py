"""The whole step as one CUDA graph: Python and kernel launches are paid for once, at the start of a run."""

from __future__ import annotations

from collections.abc import Callable

import torch

from unsmooth.training.fusing import Fusing
from unsmooth.training.step import Step

_WARM_UPS = 3


class Replay:
    """A `Step` captured on a stream of its own, so that several runs may share a GPU.

    Capturing runs a few steps for real: the caller puts the state back afterwards.

    Args:
        step: What to capture: in one graph, or in two where gradients are added up over several micro-batches.
        fusing: What to compile first; what is captured keeps the compiled kernels.
    """

    def __init__(self, step: Step, fusing: Fusing) -> None:
        self.step = step
        self.stream = torch.cuda.Stream(step.place.device)  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream(step.place.device))
        with torch.cuda.stream(self.stream), fusing:
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
