"""One way to write H with its spectrum in an interval: what all the ways have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from unsmooth.remedies.call import Volatile
from unsmooth.remedies.leading import ExactBuffers
from unsmooth.remedies.spectral.interval import Interval
from unsmooth.remedies.spectral.projecting import HeadMaps
from unsmooth.remedies.spectral.slots import ValueSlots
from unsmooth.remedies.together import grouped


class Form(ExactBuffers):
    """How W_O follows from W_V and, in some forms, from a vector ψ.

    What depends on the value weights is brought up to date in two ways: `advance`, a few kernels for all layers
    together and no waiting, before each training pass, also where nothing seems to have changed, because optimisers
    that write by `.data` and passes that were recorded in a CUDA graph leave no mark; and `settle`, exact, when
    evaluation begins, when weights are loaded, and when the version counter of the weights, or where they lie, says
    that somebody wrote to them. Of what is written into ``parameter.data`` in place during evaluation nothing tells:
    ``model.eval()``, once more, settles.
    """

    def __init__(self, slots: ValueSlots, interval: Interval) -> None:
        super().__init__()
        self.slots = slots
        self.interval = interval
        self.installed = False
        self.noted = Volatile()

    def begin(self, heads: HeadMaps | None, size: float) -> Tensor:
        """Set parameters, near to `heads` or afresh with |eigenvalues| of `size`; returns value rows (M, D)."""
        raise NotImplementedError

    def output_rows(self) -> Tensor:
        """W_O (query heads · E, D), in which gradients flow."""
        raise NotImplementedError

    def report(self) -> Mapping[str, float]:
        """Numbers worth knowing."""
        return {}

    @classmethod
    def advance(cls, forms: Sequence[Form]) -> None:
        """Bring layers of one shape up to date, together."""

    def settle(self) -> None:
        """Bring this layer up to date exactly."""

    @classmethod
    def prepare(cls, forms: Sequence[Form]) -> None:
        """Called before each pass of the stack."""
        recorded = forms[0].recorded()
        due = [form for form in forms if form.training or (recorded and torch.is_grad_enabled())]
        for together in _by_shape(due):
            cls.advance(together)
        if recorded:
            return
        for form in forms:
            if form.training:
                form.note(exact=False)
            else:
                form.make_exact()

    def recorded(self) -> bool:
        """Whether this pass is being compiled or captured in a CUDA graph, to be run again without Python."""
        if torch.compiler.is_dynamo_compiling():
            return True
        return self.slots.parameter().device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def current(self) -> bool:
        """Whether nothing was written to the value weights since this form was brought up to date."""
        return self.noted.held.get("at") == self.slots.mark()

    def note(self, *, exact: bool) -> None:
        """It is up to date."""
        self.noted.held.update(at=self.slots.mark(), exact=exact, shards=self.slots.sharded())

    def make_exact(self) -> None:
        """Settle unless that was done since the weights were last written to."""
        if not (self.current() and self.noted.held.get("exact")):
            self.settle()
            self.note(exact=True)

    def keep_current(self) -> None:
        """For those who read a weight without a pass of the stack before: somebody may have written to the others.

        Inside a block, FSDP2 has gathered weights that were noted as shards: other tensors, but the same numbers.
        """
        if not self.recorded() and not self.noted.held.get("shards") and not self.current():
            self.make_exact()

    def train(self, mode: bool = True) -> Self:
        """Switch, and do not trust what was noted."""
        self.noted.held.clear()
        super().train(mode)
        if self.installed and not mode and not self.slots.sharded():
            self.make_exact()
        return self

    def complete(self, state: dict[str, Any], prefix: str) -> None:
        """Add to a state that is loaded what follows from the value weights and another version or dtype lacks."""

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        # A block's own weights are loaded before its remedies, which come last in it.
        if self.installed and not self.slots.sharded():
            self.complete(state, prefix)
        super()._load_from_state_dict(state, prefix, *rest)
        self.noted.held.clear()
        if self.installed and not self.training and not self.slots.sharded():
            self.make_exact()


def stacked(forms: Sequence[Form]) -> Tensor:
    """The value weights (L, M, D) of layers of one shape, in float32 or better, without gradients."""
    rows = torch.stack([form.slots.whole() for form in forms]).flatten(1, 2)
    return rows.to(forms[0].slots.exact_dtype())


def _by_shape(forms: Sequence[Form]) -> list[list[Form]]:
    """Layers that can be worked on together: sharded ones each by itself, so that no process holds many."""

    def alike(form: Form) -> Any:
        weight, sharded = form.slots.parameter(), id(form) if form.slots.sharded() else None
        return weight.shape, weight.dtype, weight.device, form.interval, form.slots.group, sharded

    return grouped(forms, alike, lambda form: form.slots.parameter().numel())
