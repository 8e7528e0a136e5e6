"""Tokens: one batch of token vectors, made safe once and shared by every metric.

Shape suffixes: B sequences, N tokens (padded), D dimensions, K singular values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar, overload

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError, expected

V = TypeVar("V")


class computed_once(Generic[V]):  # noqa: N801 - reads as a decorator
    """`functools.cached_property` without the lock that Python 3.11's has and torch.compile cannot trace."""

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
    """Token vectors with everything that is not a real token set to zero, and the sums that metrics share.

    Metrics take a tensor or a `Tokens`. Handing the same `Tokens` to several metrics computes what they share (mean,
    norms, singular values) once. All sums are float64: neither squares of float32 numbers nor differences of tokens
    that are nearly equal can lose digits there, whatever the scale. So of float32 input only a token of zeros counts as
    zero; of float64 input also one shorter than 1.5e-154, whose square is no normal number. A NaN or Inf in a real
    token makes the value of its sequence NaN.

    Args:
        x: Token vectors (batch, tokens, dim) of any floating type.
        mask: Boolean (batch, tokens), True = a real token. Values at False are never read, NaN included.
    """

    def __init__(self, x: Tensor, mask: Tensor | None = None) -> None:
        check_tokens(x)
        if mask is not None:
            check_mask(mask, x.shape[:2])
        self.input_BND = x
        self.mask_BN = mask
        self.sampled: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        """Cosines of sampled pairs by number of pairs and seed, for what reads them more than once."""

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
        return self.input_BND.shape[-1]

    @computed_once
    def dtype(self) -> torch.dtype:
        """The type of results: that of the input, at least float32."""
        return torch.promote_types(self.input_BND.dtype, torch.float32)

    @computed_once
    def values_BND(self) -> Tensor:
        """The vectors in the type of results, zero at padding."""
        if self.mask_BN is None:
            return self.input_BND.to(self.dtype)
        return torch.where(self.mask_BN.unsqueeze(-1), self.input_BND, 0.0).to(self.dtype)

    @computed_once
    def exact_BND(self) -> Tensor:
        """The vectors in float64, zero at padding; float32 on Apple's GPUs, which have no float64."""
        return self.values_BND if self.input_BND.device.type == "mps" else self.values_BND.double()

    @computed_once
    def count_B(self) -> Tensor:
        """Real tokens per sequence."""
        if self.mask_BN is None:
            batch, tokens, _ = self.input_BND.shape
            return self.input_BND.new_full((batch,), float(tokens), dtype=self.dtype)
        return self.mask_BN.sum(dim=1).to(self.dtype)

    @computed_once
    def mean_BD(self) -> Tensor:
        """Mean over the real tokens; zero for a sequence that has none."""
        return self.exact_BND.sum(dim=1) / self.count_B.clamp_min(1.0).unsqueeze(-1)

    @computed_once
    def norms_BN(self) -> Tensor:
        """Euclidean norm of every token; zero at padding."""
        return euclidean_norm(self.exact_BND)

    @computed_once
    def inverse_norms_BN(self) -> Tensor:
        """1/‖x_i‖, and zero for a token without direction: zero tokens then count as cosine 0."""
        return inverse(self.norms_BN)

    @computed_once
    def nonzero_B(self) -> Tensor:
        """Tokens per sequence that have a direction."""
        return (self.norms_BN >= shortest(self.norms_BN.dtype)).sum(dim=1).to(self.dtype)

    @computed_once
    def unit_sum_BD(self) -> Tensor:
        """Σ_i x_i/‖x_i‖."""
        return weighted_sum(self.exact_BND, self.inverse_norms_BN)

    @computed_once
    def mean_energy_B(self) -> Tensor:
        """‖ΠX‖_F² = n‖x̄‖²: the part of the energy that all tokens share."""
        return self.count_B * self.mean_BD.square().sum(dim=-1)

    # Not `vector_norm(ord=1)`, which is several times slower than a copy and a sum and loses digits on long input.
    @computed_once
    def absolute_columns_BD(self) -> Tensor:
        """Σ_i |x_id| over the tokens."""
        return self.exact_BND.abs().sum(dim=1)

    @computed_once
    def absolute_rows_BN(self) -> Tensor:
        """Σ_d |x_id| over the features."""
        return self.exact_BND.abs().sum(dim=-1)

    @computed_once
    def centred_absolute_columns_BD(self) -> Tensor:
        """The sums over the tokens of |(I − Π)X|."""
        return self.centred_BND.abs().sum(dim=1)

    @computed_once
    def centred_absolute_rows_BN(self) -> Tensor:
        """The sums over the features of |(I − Π)X|."""
        return self.centred_BND.abs().sum(dim=-1)

    @computed_once
    def centred_BND(self) -> Tensor:
        """(I − Π)X, zero at padding, and exactly zero when all tokens are the same.

        The mean of equal numbers may be off by a rounding error, and what divides by the spread would report that error
        as a value. The distance to one of the tokens has none, and does not lose the digits in which tokens differ.
        """
        shifted = centre(self.exact_BND, self._first_BD.detach(), self.mask_BN)  # the result does not depend on it
        mean_BD = shifted.sum(dim=1) / self.count_B.clamp_min(1.0).unsqueeze(-1)
        return centre(shifted, mean_BD, self.mask_BN)

    @computed_once
    def centred_energy_B(self) -> Tensor:
        """‖(I − Π)X‖_F², from the differences themselves: 1 − ‖ΠX‖²/‖X‖² would cancel near collapse."""
        return self.centred_BND.square().sum(dim=(1, 2))

    @property
    def _first_BD(self) -> Tensor:
        """The first real token."""
        if self.mask_BN is None:
            return self.exact_BND[:, 0]
        index = first_real(self.mask_BN)[:, None, None].expand(-1, 1, self.dim)
        return self.exact_BND.gather(1, index).squeeze(1)

    @computed_once
    def singular_values_BK(self) -> Tensor:
        """Singular values of X in float64, largest first, K = min(N, D); zero past min(real tokens, D).

        Float32 would leave a floor of about 1e-7 σ₁ under each of hundreds of values, which the exponential
        of an entropy shows in its third decimal. LAPACK refuses NaN and Inf; here they give NaN.
        """
        values = self.exact_BND
        # One NaN or Inf makes a sum NaN or Inf, and float32 has no numbers whose sum could be Inf in float64.
        broken_B = ~values.sum(dim=(1, 2)).isfinite()
        singular = singular_values(values.masked_fill(broken_B[:, None, None], 0.0), self.rank_limit_B)
        singular = singular.masked_fill(~self.has_singular_value_BK, 0.0)
        return singular.masked_fill(broken_B.unsqueeze(-1), torch.nan)

    @computed_once
    def has_singular_value_BK(self) -> Tensor:
        """True for the first min(real tokens, D) of K: padding adds none, however far it goes."""
        slots = min(self.input_BND.shape[1:])
        return torch.arange(slots, device=self.input_BND.device) < self.rank_limit_B.unsqueeze(-1)

    @computed_once
    def rank_limit_B(self) -> Tensor:
        """min(real tokens, D): how many singular values a sequence has."""
        return self.count_B.clamp_max(float(self.dim))


def pair_of(x: Tensor | Tokens, y: Tensor | Tokens, mask: Tensor | None) -> tuple[Tokens, Tokens]:
    """Wrap two inputs over the same tokens; one mask, or the one that a `Tokens` holds, serves both."""
    if isinstance(x, Tokens) and not isinstance(y, Tokens):
        pair = Tokens.of(x, mask), Tokens(y, x.mask_BN)
    elif isinstance(y, Tokens) and not isinstance(x, Tokens):
        pair = Tokens(x, y.mask_BN), Tokens.of(y, mask)
    else:
        pair = Tokens.of(x, mask), Tokens.of(y, mask)
    shape_x, shape_y = (tuple(tokens.values_BND.shape[:2]) for tokens in pair)
    if shape_x != shape_y:
        raise expected(f"`y` over the same (batch, tokens) = {shape_x} as `x`", shape_y, "two layers of one run")
    return pair


def at_least_float32(values: Tensor) -> Tensor:
    """Half types to float32; float32 and float64 as they are."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def inverse(norms_BN: Tensor) -> Tensor:
    """1/‖x_i‖, and zero, with a gradient of zero, where the norm is. A norm that overflowed is no zero, but NaN.

    A norm whose square is no normal number of its type counts as zero: it is made of few digits.

    >>> inverse(torch.tensor([2.0, 0.0, 1e-20, torch.inf]))
    tensor([0.5000, 0.0000, 0.0000,    nan])
    >>> inverse(torch.tensor([1e-20], dtype=torch.float64))
    tensor([1.0000e+20], dtype=torch.float64)
    """
    known_BN = norms_BN.masked_fill(norms_BN == torch.inf, torch.nan)
    return known_BN.masked_fill(norms_BN < shortest(norms_BN.dtype), torch.inf).reciprocal()


def shortest(dtype: torch.dtype) -> float:
    """The least norm that is told from zero.

    >>> shortest(torch.float32)
    1.0842021724855044e-19
    """
    return math.sqrt(torch.finfo(dtype).tiny)


def weighted_sum(values_BND: Tensor, weights_BN: Tensor, out: Tensor | None = None) -> Tensor:
    """Σ_i w_i x_i (B, D); `out` is room for the weighted vectors."""
    # Not a matrix product: autocast would do that in bfloat16 and a GPU in TF32, both worth three digits.
    return torch.mul(values_BND, weights_BN.unsqueeze(-1), out=out).sum(dim=1)


def centre(values_BND: Tensor, mean_BD: Tensor, mask_BN: Tensor | None, out: Tensor | None = None) -> Tensor:
    """X − 1x̄ᵀ, zero at padding; `out` is room for it."""
    mean_B1D = mean_BD.unsqueeze(1)
    if mask_BN is None:
        return torch.sub(values_BND, mean_B1D, out=out)
    # Padding is 0 − 0·x̄, in one pass where subtracting and masking would take two.
    return torch.addcmul(values_BND, mask_BN.to(values_BND.dtype).unsqueeze(-1), mean_B1D, value=-1, out=out)


def euclidean_norm(vectors: Tensor) -> Tensor:
    """Norm over the last dimension, whose gradient at zero is zero."""
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return norms


def first_real(mask_BN: Tensor) -> Tensor:
    """Index of the first real token; 0 where there is none."""
    return mask_BN.to(torch.uint8).argmax(dim=1)


def check_tokens(x: Tensor) -> None:
    """Refuse anything but floating (batch, tokens, dim)."""
    if not isinstance(x, Tensor) or x.ndim != 3:
        shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise expected("`x` of shape (batch, tokens, dim)", shape, "x.unsqueeze(0) for one sequence")
    if not x.is_floating_point():
        raise expected("`x` of a floating type", x.dtype, "x.float()")
    if 0 in x.shape[1:]:
        raise expected("`x` with at least one token and one dimension", tuple(x.shape), "a mask to leave tokens out")


def check_mask(mask: Tensor, shape: torch.Size) -> None:
    """Refuse anything but boolean (batch, tokens)."""
    if not isinstance(mask, Tensor):
        raise expected("a boolean `mask` (True = a real token)", type(mask).__name__, "torch.tensor(mask)")
    if mask.dtype != torch.bool:
        raise expected("a boolean `mask` (True = a real token)", mask.dtype, "mask.bool()")
    if mask.shape != shape:
        raise expected(f"`mask` of shape {tuple(shape)}", tuple(mask.shape), "one entry per token")


# Squares of singular values are rounded at about 1e-16 of the largest. At 1e-10 of it they still tell a singular value
# to 1e-11 of the largest one.
_TRUSTED = 1e-10


def singular_values(matrix_BND: Tensor, count_B: Tensor) -> Tensor:
    """Singular values of float64 matrices, largest first.

    They are the roots of the eigenvalues of XXᵀ or XᵀX, whichever is smaller, at a third of the cost of a singular
    value decomposition. Matrices of which one is too small to be told by its square are decomposed after all.

    Args:
        matrix_BND: Finite matrices.
        count_B: How many singular values count; those after them belong to rows of zeros.

    >>> singular_values(torch.tensor([[[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]]]).double(), torch.tensor([2]))
    tensor([[4., 3.]], dtype=torch.float64)
    """
    # A trace cannot ask how small the smallest is, and a gradient would meet the root of zero.
    if torch.compiler.is_dynamo_compiling() or (matrix_BND.requires_grad and torch.is_grad_enabled()):
        return _decomposed(matrix_BND)
    count, dim = matrix_BND.shape[1:]
    gram_BKK = matrix_BND @ matrix_BND.mT if count < dim else matrix_BND.mT @ matrix_BND
    # A square that overflows becomes a zero on the diagonal, and that an eigenvalue too small to be trusted.
    squares_BK: Tensor = torch.linalg.eigvalsh(gram_BKK.nan_to_num(0.0, 0.0, 0.0)).flip(-1)
    smallest_B1 = squares_BK.gather(1, count_B.long().clamp_min(1).unsqueeze(-1) - 1)
    lost_B = ~(smallest_B1 > _TRUSTED * squares_BK[:, :1]).squeeze(-1)
    singular_BK: Tensor = squares_BK.clamp_min(0.0).sqrt()
    try:
        some_lost = bool(lost_B.any())
    except RuntimeError:  # within torch.vmap nobody can ask
        return _decomposed(matrix_BND)
    if some_lost:
        singular_BK[lost_B] = _decomposed(matrix_BND[lost_B])
    return singular_BK


def _decomposed(matrix_BND: Tensor) -> Tensor:
    found: Tensor = torch.linalg.svdvals(matrix_BND)
    return found
