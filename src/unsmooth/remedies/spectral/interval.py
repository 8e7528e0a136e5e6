"""Where the eigenvalues of H may be, and how a free parameter ψ becomes one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

Map: TypeAlias = Literal["clip", "rescale", "sigmoid", "square"]
# As near as a sigmoid comes to the ends of its interval at the start: nearer, it would hardly move any more.
_EDGE = 0.01


@dataclass(frozen=True)
class Interval:
    """From 0 to `sign`·`limit`, which may be infinite: [−1, 0] sharpens, [0, 1] smooths (P1, arXiv 2401.04301).

    >>> Interval(-1, 1.0).clip(torch.tensor([-3.0, -0.5, 2.0])).tolist()
    [-1.0, -0.5, 0.0]
    """

    sign: int
    limit: float

    @property
    def low(self) -> float:
        """The lower end."""
        return min(0.0, self.sign * self.limit)

    @property
    def high(self) -> float:
        """The upper end."""
        return max(0.0, self.sign * self.limit)

    @property
    def scale(self) -> float:
        """What sizes are shares of: the limit, or 1 where there is none."""
        return self.limit if math.isfinite(self.limit) else 1.0

    def clip(self, values: Tensor) -> Tensor:
        """The nearest points of the interval."""
        return values.clamp(self.low, self.high)


class _ClipThrough(torch.autograd.Function):
    """Clipping whose gradient is that of the identity, one kernel forward and none backward.

    A plain clip has no gradient outside the interval, so an eigenvalue that once left it would never come back.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(psi: Tensor, low: float, high: float) -> Tensor:
        """Clip."""
        return psi.clamp(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
        """There is nothing to keep, but transforms of torch.func want it apart."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Pass on."""
        return grads[0], None, None

    @staticmethod
    def jvp(ctx: Any, psi_t: Tensor, *_: None) -> Tensor:
        """Pass on, as another tensor than was given."""
        return psi_t.view_as(psi_t)


class _CompiledClipThrough(torch.autograd.Function):
    """The same for torch.compile, which takes no function with a `jvp`."""

    @staticmethod
    def forward(ctx: Any, psi: Tensor, low: float, high: float) -> Tensor:
        """Clip."""
        return psi.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Pass on."""
        return grads[0], None, None


def eigenvalues(psi: Tensor, how: str, interval: Interval) -> Tensor:
    r"""The eigenvalues that ψ stands for.

    "clip" is :math:`\mathrm{clip}(\psi)` with straight-through gradients, "sigmoid" is
    :math:`\pm\,limit\cdot\mathrm{sigmoid}(\psi)`, "square" is :math:`\pm\psi^2`, which no interval bounds.

    >>> psi = torch.tensor([-2.0, 0.0])
    >>> [eigenvalues(psi, how, Interval(-1, 1.0)).tolist() for how in ("clip", "square")]
    [[-1.0, 0.0], [-4.0, -0.0]]
    """
    if how == "clip":
        through: Any = _CompiledClipThrough if torch.compiler.is_dynamo_compiling() else _ClipThrough
        clipped: Tensor = through.apply(psi, interval.low, interval.high)
        return clipped
    if how == "sigmoid":
        return psi.sigmoid() * (interval.sign * interval.limit)
    return psi.square() * interval.sign


def psi_for(values: Tensor, how: str, interval: Interval) -> Tensor:
    """The ψ that stands for eigenvalues of the interval; a sigmoid keeps a hundredth away from its ends.

    >>> psi_for(torch.tensor([-0.25]), "square", Interval(-1, 1.0)).tolist()
    [0.5]
    """
    values = interval.clip(values)
    if how == "clip":
        return values
    if how == "sigmoid":
        return (values.abs() / interval.limit).clamp(_EDGE, 1.0 - _EDGE).logit()
    return values.abs().sqrt()
