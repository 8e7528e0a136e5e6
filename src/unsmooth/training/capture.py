"""The step compiled, and as one CUDA graph: Python and kernel launches are paid for once, at the start of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Literal

import torch

from unsmooth.models import find_anatomy
from unsmooth.training.state import unwrapped
from unsmooth.training.step import Step

How = Literal["off", "blocks", "whole"]
# Under this name torch keeps what it calls instead of a module that was compiled.
_CALLED = "_compiled_call_impl"
# What our networks do before their first block.
_BEFORE = "embedded"
# Every module shares the code of its call, and torch counts by code how often it has compiled: past eight it gives up
# for good and runs eagerly. A process that trains one run after another gets there, so it may compile more often.
_COMPILED_AT_MOST = {"recompile_limit": 512, "accumulated_recompile_limit": 8192}


class Fusing:
    """The model, the input and the numbers of a step as torch.compile makes them, while the context is open.

    Outside of it modules are as they were: scans and evaluations see plain ones. Compiling happens at the first call.

    Args:
        step: The run.
        how: "blocks" one by one, because they are alike: torch compiles the first and knows the rest. "whole" compiles
            the model as one, which takes longer and lets kernels reach across blocks. "off" changes nothing.
    """

    def __init__(self, step: Step, how: How) -> None:
        self._swaps = [] if how == "off" else list(_swaps(step, how))
        self._kept: list[dict[str, Any]] = []
        self._limits = ExitStack()

    def __enter__(self) -> Fusing:
        if self._swaps:
            self._limits.enter_context(torch._dynamo.config.patch(_COMPILED_AT_MOST))
        for owner, name, fused in self._swaps:
            own = vars(owner)
            self._kept.append({name: own[name]} if name in own else {})
            own[name] = fused
        return self

    def __exit__(self, *_: object) -> None:
        self._limits.close()
        for owner, name, _ in reversed(self._swaps):
            vars(owner).pop(name)
            vars(owner).update(self._kept.pop())


def _swaps(step: Step, how: How) -> Iterator[tuple[object, str, Any]]:
    """What takes the place of what: owner, name of the attribute, compiled."""
    whole = unwrapped(step.model)
    for module in [whole] if how == "whole" else find_anatomy(step.model).blocks.values():
        yield module, _CALLED, torch.compile(module._call_impl)
    for module in step.task.fusible():
        # Sums and products are not contracted: an image is, to the grey level, the same as one that was not compiled.
        yield module, _CALLED, torch.compile(module._call_impl, options={"emulate_precision_casts": True})
    for module in whole.modules() if how == "blocks" else ():
        if callable(getattr(type(module), _BEFORE, None)):
            yield module, _BEFORE, torch.compile(getattr(module, _BEFORE))
    yield step, "decided", torch.compile(step.decided)


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
