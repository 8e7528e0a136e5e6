"""The model at rest: whole, unwrapped, in evaluation mode, to be looked at or written down; the run stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from unsmooth.scanning.undisturbed import tensors_kept
from unsmooth.training.snapshot import unwrapped
from unsmooth.training.step import Step


class Rest:
    """Gives the model of a run, or its moving average, as a plain module.

    Args:
        engine: The run.
        build: Makes the model anew, with its remedies, on the CPU: where the model is sharded, every process puts the
            shards together in such a twin, which it keeps for the next time.
    """

    def __init__(self, engine: Step, build: Callable[[], nn.Module]) -> None:
        self._engine, self._build = engine, build
        self._twin: nn.Module | None = None

    @contextmanager
    def __call__(self, *, average: bool = False) -> Iterator[nn.Module]:
        """Every process has to call this, and has a model that it may run by itself."""
        engine, model = self._engine, unwrapped(self._engine.model)
        if not engine.sharded:
            # Some remedies bring weights into their exact form for evaluation; looking at a run must not change it.
            with tensors_kept(model), engine.averaged() if average else nullcontext():
                try:
                    yield model.eval()
                finally:
                    model.train()
            return
        with engine.averaged() if average else nullcontext():
            state = whole_state(model)
        twin = self._twin = self._twin or self._build()
        twin.load_state_dict(state)
        yield twin.to(engine.place.device).eval()
        twin.cpu()


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The model's tensors, each whole and on the CPU; every process has to call this."""
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu()
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }
