"""A whole attention layer as a linear map of the tokens, split into what it does to their mean and to the rest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.spectra._checks import check_heads, check_maps
from unsmooth.spectra.summed import summed_product

EQUAL_SCALES = 1e-3


@dataclass(frozen=True)
class LayerOperator:
    r"""X ↦ (X + Σ_h A_h S X L w_v[h] w_o[h]) R, tokens as rows, attention held fixed.

    Where all rows of all A_h sum to one, tokens that are all equal stay equal, and with Π the mean over tokens the
    map is block triangular: (I + L Σ_h H_h) R on the mean, X̃ ↦ (X̃ + Σ_h (I − Π) A_h X̃ L H_h) R on the rest. Products
    of layers keep that form.

    Args:
        maps: Attention (heads, n, n).
        w_v: Value weights (heads, d, d_h).
        w_o: Output weights (heads, d_h, d).
        left: L (d, d), a norm before the branch (`norm_factor`); None for I. May be folded into w_v instead.
        right: R (d, d), a norm after the addition (`norm_factor`); None for I.
        token_scale: (n,) the diagonal of S: 1/σ of every token, where a norm before the branch divides each by its
            own. Unless all are equal, S breaks the split: the blocks are still those of the map, but it also leaks
            from mean to rest; needs `allow_unnormalised`.
        allow_unnormalised: Take scales that differ and maps whose rows do not sum to one.
    """

    maps: Tensor
    w_v: Tensor
    w_o: Tensor
    left: Tensor | None = None
    right: Tensor | None = None
    token_scale: Tensor | None = None
    allow_unnormalised: bool = False

    def __post_init__(self) -> None:
        check_heads(self.w_v, self.w_o)
        maps = check_maps(self.maps, allow_unnormalised=self.allow_unnormalised)
        heads, d, _ = self.w_v.shape
        if len(maps) != heads:
            raise expected(f"attention maps of {heads} heads, as many as weights", len(maps), "one layer at a time")
        for name, factor in (("left", self.left), ("right", self.right)):
            if factor is not None and factor.shape != (d, d):
                raise expected(f"`{name}` of shape {(d, d)}", tuple(factor.shape), "norm_factor(...)")
        if self.token_scale is not None:
            self._check_scale(self.token_scale, maps.shape[1])

    def _check_scale(self, scale_N: Tensor, n: int) -> None:
        if scale_N.shape != (n,) or not bool(torch.isfinite(scale_N).all()):
            raise expected(f"a finite `token_scale` of shape ({n},)", tuple(scale_N.shape), "1 / σ of every token")
        spread = float((scale_N - scale_N.mean()).abs().max())
        if spread > EQUAL_SCALES * float(scale_N.mean().abs()) and not self.allow_unnormalised:
            raise expected("one `token_scale` for all tokens", f"scales {spread:.3g} apart", "allow_unnormalised=True")

    @property
    def tokens(self) -> int:
        """Number of tokens, n."""
        return self.maps.shape[1]

    @property
    def dim(self) -> int:
        """Width of the stream, d."""
        return self.w_v.shape[1]

    def to(self, dtype: torch.dtype) -> LayerOperator:
        """The same map in another precision, with everything that can be folded into w_v and the maps folded."""
        maps, w_v = self.maps.detach().to(dtype), self.w_v.detach().to(dtype)
        if self.left is not None:
            w_v = self.left.detach().to(w_v) @ w_v
        if self.token_scale is not None:
            maps = maps * self.token_scale.detach().to(maps)
        right = None if self.right is None else self.right.detach().to(w_v)
        return LayerOperator(maps, w_v, self.w_o.detach().to(w_v), right=right, allow_unnormalised=True)

    def mean_matrix(self) -> Tensor:
        """(I + Σ_h H_h) R in float64 (d, d): the map on the token mean."""
        folded = self.to(torch.float64)
        # 1 unless rows do not sum to one: how much of the mean each head hands on to the mean.
        gains_H11 = folded.maps.sum(dim=(1, 2))[:, None, None] / self.tokens
        matrix = summed_product(folded.w_v * gains_H11, folded.w_o) + torch.eye(self.dim).to(folded.w_v)
        return matrix if folded.right is None else matrix @ folded.right

    def rest(self, x_ND: Tensor) -> Tensor:
        """The map on tokens of mean zero, (..., n, d) to the same; call on the result of `to`."""
        heads, d, d_h = self.w_v.shape
        # All heads in one product with the weights, before the maps and after.
        values = x_ND @ self.w_v.permute(1, 0, 2).reshape(d, heads * d_h)
        mixed = self.maps @ values.reshape(*values.shape[:-1], heads, d_h).movedim(-2, -3)
        added = mixed.movedim(-3, -2).flatten(-2) @ self.w_o.reshape(heads * d_h, d)
        moved: Tensor = x_ND + added - added.mean(dim=-2, keepdim=True)
        return moved if self.right is None else moved @ self.right

    def rest_matrix(self) -> Tensor:
        """The map on the rest as a float64 matrix ((n − 1)d, (n − 1)d), acting on rows; for small layers."""
        folded = self.to(torch.float64)
        n, d = self.tokens, self.dim
        basis = mean_zero_basis(n).to(folded.w_v)
        units = torch.eye((n - 1) * d).to(folded.w_v).reshape(-1, n - 1, d)
        return (basis.mT @ folded.rest(basis @ units)).reshape(len(units), -1)


def mean_zero_basis(n: int) -> Tensor:
    """Orthonormal columns (n, n − 1) that span all vectors of mean zero."""
    columns = torch.cat([torch.ones(n, 1), torch.eye(n)[:, 1:]], dim=1)
    orthonormal: Tensor = torch.linalg.qr(columns.double())[0]
    return orthonormal[:, 1:]
