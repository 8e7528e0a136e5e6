"""A block's Jacobian without its matrix: products with vectors, norms of its parts, growth at the collapsed point.

Π is the mean over the real tokens of each sequence. A perturbation splits into its token mean ΠV and the rest; the
Jacobian J of a block then has four parts. At the collapsed point, where all tokens equal their mean x̄, the part
(I − Π)JΠ vanishes for attention whose rows sum to one, and the split is exact (P1, arXiv 2401.04301, for one head
without norm or MLP; here for the block as it runs).

Shape suffixes: B sequences, N tokens, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unsmooth.explaining.observe import LayerView, differentiable
from unsmooth.explaining.result import Gains

Projection = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Split:
    """Π and I − Π over the real tokens of each sequence; padding is zero on both sides."""

    real_BN: Tensor

    def mean_part(self, x_BND: Tensor) -> Tensor:
        """ΠX: every real token replaced by the mean of its sequence."""
        weight_BN1 = self._weights(x_BND)
        mean_B1D = (x_BND * weight_BN1).sum(dim=1, keepdim=True) / weight_BN1.sum(dim=1, keepdim=True)
        return mean_B1D * weight_BN1

    def rest_part(self, x_BND: Tensor) -> Tensor:
        """(I − Π)X."""
        return x_BND * self._weights(x_BND) - self.mean_part(x_BND)

    def energy(self, x_BND: Tensor) -> Tensor:
        """‖X‖² of each sequence."""
        return (x_BND * self._weights(x_BND)).double().square().sum(dim=(1, 2))

    def similarity(self, x_BND: Tensor) -> Tensor:
        """t_sim = ‖ΠX‖²/‖X‖² of each sequence, 0 where X is zero."""
        total = self.energy(x_BND)
        # Not `total > 0`, or NaN would be taken for a measured zero.
        return torch.where(total == 0, 0.0, self.energy(self.mean_part(x_BND.double())) / total)

    def _weights(self, x_BND: Tensor) -> Tensor:
        return self.real_BN.unsqueeze(-1).to(x_BND.dtype)


@dataclass(frozen=True)
class BlockMap:
    """A block as a function of the stream that enters it, with its derivative.

    Args:
        layer: The block and its call.
        split: Tells real tokens from padding, which is left as it was.
    """

    layer: LayerView
    split: Split

    def value(self, x_BND: Tensor) -> Tensor:
        """f(X)."""
        with torch.no_grad(), differentiable():
            return self.layer.rerun(self._padded(x_BND))

    def push(self, x_BND: Tensor, tangent_BND: Tensor) -> tuple[Tensor, Tensor]:
        """f(X) and J(X)V, by forward differentiation where every operation has it."""
        tangent_BND = self._real(tangent_BND)
        try:
            with differentiable(), torch.no_grad():
                both = torch.func.jvp(lambda x: self.layer.rerun(self._padded(x)), (x_BND,), (tangent_BND,))
            value, pushed = both[0], both[1]
        except (RuntimeError, NotImplementedError):
            value, pushed = self._push_by_pulls(x_BND, tangent_BND)
        return value.detach(), self._real(pushed.detach())

    def _push_by_pulls(self, x_BND: Tensor, tangent_BND: Tensor) -> tuple[Tensor, Tensor]:
        """JᵀW is linear in W, with derivative JV along V: for operations that only know backward (BLOOM's GELU)."""
        with differentiable(), torch.enable_grad():
            x = x_BND.detach().requires_grad_()
            value = self.layer.rerun(self._padded(x))
            cotangent = torch.zeros_like(value, requires_grad=True)
            (pulled,) = torch.autograd.grad(value, x, cotangent, create_graph=True)
            (pushed,) = torch.autograd.grad(pulled, cotangent, tangent_BND)
        return value, pushed

    def pull(self, x_BND: Tensor, cotangent_BND: Tensor) -> Tensor:
        """J(X)ᵀW, by backward differentiation."""
        with differentiable(), torch.enable_grad():
            x = x_BND.detach().requires_grad_()
            value = self.layer.rerun(self._padded(x))
            (pulled,) = torch.autograd.grad(value, x, self._real(cotangent_BND))
        return self._real(pulled)

    def collapsed(self) -> Tensor:
        """The point at which all real tokens are their mean."""
        return self.split.mean_part(self.layer.sites["input"])

    def _padded(self, x_BND: Tensor) -> Tensor:
        return torch.where(self.split.real_BN.unsqueeze(-1), x_BND, self.layer.sites["input"])

    def _real(self, x_BND: Tensor) -> Tensor:
        return x_BND * self.split.real_BN.unsqueeze(-1).to(x_BND.dtype)


def gains(block: BlockMap, steps: int = 5, growth_steps: int = 8, seed: int = 0) -> Gains:
    """Norms of the four parts of J at real activations, and the growth of both sides at the collapsed point.

    Norms are by power iteration on PJᵀQJP from a random start, a lower bound that `steps` iterations bring close;
    growth is the mean log growth over the second half of `growth_steps` applications. Both are means over sequences of
    two tokens or more: one token has no rest.
    """
    mean, rest = block.split.mean_part, block.split.rest_part
    point, collapsed = block.layer.sites["input"], block.collapsed()
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(point.shape, generator=generator, dtype=point.dtype).to(point.device)
    return Gains(
        mean=_norm(block, point, mean, mean, start, steps),
        rest=_norm(block, point, rest, rest, start, steps),
        mean_to_rest=_norm(block, point, mean, rest, start, steps),
        rest_to_mean=_norm(block, point, rest, mean, start, steps),
        collapsed_mean=_growth(block, collapsed, mean, start, growth_steps),
        collapsed_rest=_growth(block, collapsed, rest, start, growth_steps),
    )


def _norm(
    block: BlockMap, point: Tensor, source: Projection, target: Projection, start_BND: Tensor, steps: int
) -> float:
    """‖target J source‖₂, mean over sequences."""
    vector = _unit(source(start_BND))
    norm_B = torch.zeros(len(vector))
    for _ in range(steps):
        pushed = target(block.push(point, vector)[1])
        norm_B = _length(pushed)
        vector = _unit(source(block.pull(point, pushed)))
    return _mean(norm_B, block.split)


def _growth(block: BlockMap, point: Tensor, part: Projection, start_BND: Tensor, steps: int) -> float:
    """Modulus of the largest eigenvalue of one side: growth per application once the start is forgotten."""
    vector = _unit(part(start_BND))
    logs = []
    for _ in range(steps):
        pushed = part(block.push(point, vector)[1])
        logs.append(_length(pushed).clamp_min(torch.finfo(torch.float64).tiny).log())
        vector = _unit(pushed)
    return math.exp(_mean(torch.stack(logs[steps // 2 :]).mean(dim=0), block.split))


def _length(x_BND: Tensor) -> Tensor:
    return x_BND.double().square().sum(dim=(1, 2)).sqrt()


def _unit(x_BND: Tensor) -> Tensor:
    """Each sequence's vector divided by its length; a zero vector, as a single token's rest is, stays zero."""
    length = _length(x_BND).to(x_BND.dtype)
    return x_BND / torch.where(length > 0, length, 1.0)[:, None, None]


def _mean(values_B: Tensor, split: Split) -> float:
    return float(values_B.double()[split.real_BN.sum(dim=1) >= 2].mean())
