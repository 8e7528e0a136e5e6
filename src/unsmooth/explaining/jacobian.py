"""A block's Jacobian without its matrix: products with vectors, norms of its parts, growth at the collapsed point.

Π is the mean over the real tokens of each sequence. A perturbation splits into its token mean ΠV and the rest; the
Jacobian J of a block then has four parts. At the collapsed point, where all tokens equal their mean x̄, the part
(I − Π)JΠ vanishes for attention whose rows sum to one, and the split is exact (P1, arXiv 2401.04301, for one head
without norm or MLP; here for the block as it runs).

Shape suffixes: B sequences, N tokens, D dimensions.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unsmooth.explaining.observe import Differentiable, LayerView
from unsmooth.explaining.result import Gains
from unsmooth.models.spread import is_sharded

Projection = Callable[[Tensor], Tensor]
# How many vectors two ways of a product are compared on, and how far they may differ: a half float has eight bits.
_DRAWN, _ROUNDED = 4, 0.03
# Torch has one level of forward differentiation for all threads: who leaves it takes away what others find on it.
_FORWARD = threading.Lock()


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
class Products:
    """Of the Jacobian at one point, with a perturbation from the right (`push`) and from the left (`pull`)."""

    push: Projection
    pull: Projection

    def are_of_one_matrix(self, like_BND: Tensor) -> bool:
        """Whether W·JV is JᵀW·V for a few that are drawn: it is not where one of the two leaves something out."""
        generator = torch.Generator().manual_seed(0)

        def drawn() -> Tensor:
            return torch.randn(like_BND.shape, generator=generator, dtype=like_BND.dtype).to(like_BND.device)

        v_BND = drawn()
        pushed = self.push(v_BND)
        away = [_dot(w_BND, pushed) - _dot(self.pull(w_BND), v_BND) for w_BND in (drawn() for _ in range(_DRAWN))]
        # W·JV is about as large as JV is long.
        return bool((torch.stack(away).abs() <= _ROUNDED * _dot(pushed, pushed).sqrt()).all())


@dataclass(frozen=True)
class BlockMap:
    """A block as a function of the stream that enters it, with its derivative.

    Args:
        layer: The block and its call.
        split: Tells real tokens from padding, which is left as it was.
    """

    layer: LayerView
    split: Split

    def push(self, x_BND: Tensor, tangent_BND: Tensor) -> tuple[Tensor, Tensor]:
        """f(X) and J(X)V, by forward differentiation where every operation has it."""
        tangent_BND = self._real(tangent_BND)
        try:
            with _FORWARD, Differentiable(), torch.no_grad():
                both = torch.func.jvp(lambda x: self.layer.rerun(self._padded(x)), (x_BND,), (tangent_BND,))
            value, pushed = both[0], both[1]
        except (RuntimeError, NotImplementedError):  # operations that only know backward (BLOOM's GELU)
            value, products = self._run_once(x_BND)
            pushed = products.push(tangent_BND)
        return value.detach(), self._real(pushed.detach())

    def pull(self, x_BND: Tensor, cotangent_BND: Tensor) -> Tensor:
        """J(X)ᵀW, by backward differentiation."""
        with Differentiable(), torch.enable_grad():
            x = x_BND.detach().requires_grad_()
            value = self.layer.rerun(self._padded(x))
            (pulled,) = torch.autograd.grad(value, x, self._real(cotangent_BND))
        return self._real(pulled)

    def at(self, x_BND: Tensor) -> Products:
        """J at one point, for many products: where possible the block runs once, and is differentiated twice.

        Not where FSDP2 takes the weights away after a pass, or where an operation cannot be differentiated twice, of
        which some do not say so.
        """
        each = Products(lambda v_BND: self.push(x_BND, v_BND)[1], lambda w_BND: self.pull(x_BND, w_BND))
        if is_sharded(self.layer.block):
            return each
        try:
            _, once = self._run_once(x_BND)
            return once if once.are_of_one_matrix(x_BND) else each
        except (RuntimeError, NotImplementedError):
            return each

    def _run_once(self, x_BND: Tensor) -> tuple[Tensor, Products]:
        """f(X), and products with J: JᵀW is linear in W, with derivative JV along V."""
        with Differentiable(), torch.enable_grad():
            x = x_BND.detach().requires_grad_()
            value = self.layer.rerun(self._padded(x))
            cotangent = torch.zeros_like(value, requires_grad=True)
            (pulled,) = torch.autograd.grad(value, x, cotangent, create_graph=True)

        def product(of: Tensor, by: Tensor, with_BND: Tensor) -> Tensor:
            (found,) = torch.autograd.grad(of, by, self._real(with_BND), retain_graph=True)
            return self._real(found)

        return value, Products(
            lambda v_BND: product(pulled, cotangent, v_BND.to(pulled.dtype)),
            lambda w_BND: product(value, x, w_BND.to(value.dtype)),
        )

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
    point = block.layer.sites["input"]
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(point.shape, generator=generator, dtype=point.dtype).to(point.device)
    return Gains(**_norms(block, point, start, steps), **_growths(block, block.collapsed(), start, growth_steps))


def _norms(block: BlockMap, point: Tensor, start_BND: Tensor, steps: int) -> dict[str, float]:
    mean, rest, jacobian = block.split.mean_part, block.split.rest_part, block.at(point)
    parts = {
        "mean": (mean, mean),
        "rest": (rest, rest),
        "mean_to_rest": (mean, rest),
        "rest_to_mean": (rest, mean),
    }
    return {
        name: _mean(_norm(jacobian, source, target, start_BND, steps), block.split)
        for name, (source, target) in parts.items()
    }


def _growths(block: BlockMap, point: Tensor, start_BND: Tensor, steps: int) -> dict[str, float]:
    jacobian = block.at(point)
    parts = {"collapsed_mean": block.split.mean_part, "collapsed_rest": block.split.rest_part}
    return {
        name: math.exp(_mean(_growth(jacobian, part, start_BND, steps), block.split)) for name, part in parts.items()
    }


def _norm(jacobian: Products, source: Projection, target: Projection, start_BND: Tensor, steps: int) -> Tensor:
    """‖target J source‖₂ of each sequence."""
    vector = _unit(source(start_BND))
    norm_B = torch.zeros(len(vector))
    for _ in range(steps):
        pushed = target(jacobian.push(vector))
        norm_B = _length(pushed)
        vector = _unit(source(jacobian.pull(pushed)))
    return norm_B


def _growth(jacobian: Products, part: Projection, start_BND: Tensor, steps: int) -> Tensor:
    """Log of the largest eigenvalue's modulus of one side, by sequence: growth once the start is forgotten."""
    vector = _unit(part(start_BND))
    logs = []
    for _ in range(steps):
        pushed = part(jacobian.push(vector))
        logs.append(_length(pushed).clamp_min(torch.finfo(torch.float64).tiny).log())
        vector = _unit(pushed)
    return torch.stack(logs[steps // 2 :]).mean(dim=0)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one.double() * other.double()).sum()


def _length(x_BND: Tensor) -> Tensor:
    return x_BND.double().square().sum(dim=(1, 2)).sqrt()


def _unit(x_BND: Tensor) -> Tensor:
    """Each sequence's vector divided by its length; a zero vector, as a single token's rest is, stays zero."""
    length = _length(x_BND).to(x_BND.dtype)
    return x_BND / torch.where(length > 0, length, 1.0)[:, None, None]


def _mean(values_B: Tensor, split: Split) -> float:
    return float(values_B.double()[split.real_BN.sum(dim=1) >= 2].mean())
