"""Tokens: one batch of token vectors, made safe once and shared by every metric.

Shape suffixes: B sequences, N tokens (padded), D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, overload

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError, expected

V = TypeVar("V")


class computed_once(Generic[V]):  # noqa: N801 - reads as a decorator
    """`functools.cached_property` without the lock, which Python 3.11's has and torch.compile cannot trace."""

    def __init__(self, function: Callable[[Tokens], V]) -> None:
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, owner: None, kind: type[Tokens]) -> computed_once[V]: ...
    @overload
    def __get__(self, owner: Tokens, kind: type[Tokens]) -> V: ...
    def __get__(self, owner: Tokens | None, kind: type[Tokens]) -> computed_once[V] | V:
        if owner is None:
            return self
        # Set on the instance, the value shadows this descriptor from now on.
        value = self.function(owner)
        setattr(owner, self.name, value)
        return value


class Tokens:
    """Token vectors in at least float32 with everything that is not a real token set to zero.

    Metrics take a tensor or a `Tokens`. Handing the same `Tokens` to several metrics computes what they share
    (mean, norms, singular values) once, which is what keeps a scan near the cost of the plain forward pass.

    Args:
        x: Token vectors (batch, tokens, dim) of any floating type.
        mask: Boolean (batch, tokens), True = a real token. Values at False are never read, NaN included.
    """

    def __init__(self, x: Tensor, mask: Tensor | None = None) -> None:
        check_tokens(x)
        values = x if x.dtype in (torch.float32, torch.float64) else x.float()
        if mask is not None:
            check_mask(mask, x.shape[:2])
            values = values.masked_fill(~mask.unsqueeze(-1), 0.0)
        self.values_BND = values
        self.mask_BN = mask

    @classmethod
    def of(cls, x: Tensor | Tokens, mask: Tensor | None = None) -> Tokens:
        """Wrap a tensor; hand a `Tokens` back as it is."""
        if isinstance(x, Tokens):
            if mask is not None:
                raise UnsmoothError("Expected no mask beside a Tokens, which holds its own. Try Tokens(x, mask).")
            return x
        return cls(x, mask)

    @property
    def dim(self) -> int:
        """Number of features D."""
        return self.values_BND.shape[-1]

    @computed_once
    def count_B(self) -> Tensor:
        """Real tokens per sequence."""
        if self.mask_BN is None:
            batch, tokens, _ = self.values_BND.shape
            return self.values_BND.new_full((batch,), float(tokens))
        return self.mask_BN.sum(dim=1).to(self.values_BND.dtype)

    @computed_once
    def mean_BD(self) -> Tensor:
        """Mean over the real tokens; zero for a sequence that has none."""
        return self.values_BND.sum(dim=1) / self.count_B.clamp_min(1.0).unsqueeze(-1)

    @computed_once
    def norms_BN(self) -> Tensor:
        """Euclidean norm of every token; zero at padding."""
        return torch.linalg.vector_norm(self.values_BND, dim=-1)

    @computed_once
    def inverse_norms_BN(self) -> Tensor:
        """1/‖x_i‖, and zero for a token without direction: zero tokens then count as cosine 0."""
        positive = self.norms_BN > 0
        return torch.where(positive, 1.0 / torch.where(positive, self.norms_BN, 1.0), 0.0)

    @computed_once
    def nonzero_B(self) -> Tensor:
        """Tokens per sequence that have a direction."""
        return (self.norms_BN > 0).sum(dim=1).to(self.values_BND.dtype)

    @computed_once
    def unit_sum_BD(self) -> Tensor:
        """Σ_i x_i/‖x_i‖ without building the unit vectors."""
        return torch.bmm(self.inverse_norms_BN.unsqueeze(1), self.values_BND).squeeze(1)

    @computed_once
    def energy_B(self) -> Tensor:
        """‖X‖_F²."""
        return self.norms_BN.square().sum(dim=1)

    @computed_once
    def mean_energy_B(self) -> Tensor:
        """‖ΠX‖_F² = n‖x̄‖²: the part of the energy that all tokens share."""
        return self.count_B * self.mean_BD.square().sum(dim=-1)

    @computed_once
    def centred_BND(self) -> Tensor:
        """(I − Π)X, zero at padding."""
        centred = self.values_BND - self.mean_BD.unsqueeze(1)
        return centred if self.mask_BN is None else centred.masked_fill_(~self.mask_BN.unsqueeze(-1), 0.0)

    @computed_once
    def centred_energy_B(self) -> Tensor:
        """‖(I − Π)X‖_F², from the differences themselves: 1 − ‖ΠX‖²/‖X‖² would cancel near collapse."""
        return torch.linalg.vector_norm(self.centred_BND, dim=(1, 2)).square()

    @computed_once
    def singular_values_BK(self) -> Tensor:
        """Singular values of X in float64, largest first, K = min(N, D); zero past min(real tokens, D).

        Float32 would leave a floor of about 1e-7 σ₁ under each of hundreds of values, which the exponential
        of an entropy shows in its third decimal.
        """
        return torch.linalg.svdvals(self.values_BND.double())

    @computed_once
    def rank_limit_B(self) -> Tensor:
        """min(real tokens, D): how many singular values a sequence has, however far it is padded."""
        return self.count_B.clamp_max(float(self.dim))


def check_tokens(x: Tensor) -> None:
    """Refuse anything but floating (batch, tokens, dim)."""
    if not isinstance(x, Tensor) or x.ndim != 3:
        shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise expected("`x` of shape (batch, tokens, dim)", shape, "x.unsqueeze(0) for one sequence")
    if not x.is_floating_point():
        raise expected("`x` of a floating type", x.dtype, "x.float()")


def check_mask(mask: Tensor, shape: torch.Size) -> None:
    """Refuse anything but boolean (batch, tokens)."""
    if mask.dtype != torch.bool:
        raise expected("a boolean `mask` (True = a real token)", mask.dtype, "mask.bool()")
    if mask.shape != shape:
        raise expected(f"`mask` of shape {tuple(shape)}", tuple(mask.shape), "one entry per token")
