"""Arnoldi's iteration on many operators at once: the outermost eigenvalues from a few products.

Shape suffixes: G operators, M steps, N size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unsmooth.spectra._lapack import eigenvalues_of, matrix_vector

Operator = Callable[[Tensor], Tensor]
# The share of a product that must be new for a step to go on, in float32.
EXHAUSTED = 1e-5


@dataclass(frozen=True)
class Krylov:
    """An orthonormal basis (G, M + 1, N) and the operator in it, (G, M + 1, M) upper Hessenberg."""

    basis: Tensor
    hessenberg: Tensor

    @property
    def steps(self) -> int:
        """How many times the operator was applied."""
        return self.hessenberg.shape[2]

    def __getitem__(self, which_G: Tensor) -> Krylov:
        which_G = which_G.to(self.basis.device)
        return Krylov(self.basis[which_G], self.hessenberg[which_G])

    def ritz_values(self) -> Tensor:
        """Estimates of the outermost eigenvalues, complex128 (G, M) on the CPU.

        Steps past an exhausted space have none: the largest stands in for each.
        """
        values_GM = eigenvalues_of(self.hessenberg[:, :-1])
        largest_G1 = values_GM.gather(1, values_GM.abs().argmax(dim=1, keepdim=True))
        return torch.where(values_GM == 0.0, largest_G1, values_GM)

    def ritz_residuals(self, values_G: Tensor) -> tuple[Tensor, Tensor]:
        """For one Ritz value per operator: ‖Bx − θx‖ of its unit vector (G,), and that vector's coordinates (G, M)."""
        small = self.hessenberg[:, :-1].to("cpu", torch.complex128)
        size_G11 = torch.linalg.matrix_norm(small).real.clamp_min(1e-30)[:, None, None]
        identity = torch.eye(self.steps, dtype=small.dtype)
        # One step of inverse iteration beside the eigenvalue; exactly on it there is nothing to solve.
        shifted = small - values_G[:, None, None] * identity + 1e-10 * size_G11 * identity
        start = torch.ones(len(small), self.steps, 1, dtype=small.dtype)
        found, _ = torch.linalg.solve_ex(shifted, start)
        unit = found[..., 0] / torch.linalg.vector_norm(found[..., 0], dim=-1, keepdim=True)
        last_G = self.hessenberg[:, -1, -1].to("cpu", torch.float64)
        return last_G * unit[:, -1].abs(), unit


def arnoldi(apply: Operator, start_GN: Tensor, steps: int) -> Krylov:
    """Build the basis of span(x, Bx, ..., B^(M-1) x), orthogonalised twice so that float32 keeps it orthogonal.

    Args:
        apply: B on vectors (G, N).
        start_GN: x, of length one; an operator that leaves a subspace alone stays in it.
        steps: M.

    Returns:
        Basis and Hessenberg matrices; where the space is exhausted early, zeros from there on.
    """
    count, size = start_GN.shape
    basis = start_GN.new_zeros(count, steps + 1, size)
    hessenberg = start_GN.new_zeros(count, steps + 1, steps)
    basis[:, 0] = start_GN
    for step in range(steps):
        vector = apply(basis[:, step])
        whole_G = torch.linalg.vector_norm(vector, dim=-1)
        known = basis[:, : step + 1]
        first = matrix_vector(known, vector)
        vector = vector - matrix_vector(known.mT, first)
        second = matrix_vector(known, vector)
        vector = vector - matrix_vector(known.mT, second)
        length_G = torch.linalg.vector_norm(vector, dim=-1)
        # What is left of a space that is exhausted is rounding, and no direction.
        length_G = torch.where(length_G > EXHAUSTED * whole_G, length_G, 0.0)
        hessenberg[:, : step + 1, step] = first + second
        hessenberg[:, step + 1, step] = length_G
        basis[:, step + 1] = vector * torch.where(length_G > 0.0, 1.0 / length_G, 0.0).unsqueeze(-1)
    return Krylov(basis, hessenberg)


def start_vector(size: int, like: Tensor) -> Tensor:
    """The same random unit vector of mean zero every time (N,)."""
    values = torch.randn(size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    values = values - values.mean()
    unit: Tensor = values / values.norm()
    return unit.to(like)
