"""The largest singular value of weights: followed by power steps, many matrices at a time, or found exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from unsmooth.remedies.precision import full_precision


class ExactBuffers(nn.Module):
    """A module whose buffers stay in float32 or better when a model is cast.

    `follows` names those that it finds anew where a state that is loaded lacks them.
    """

    follows: ClassVar[tuple[str, ...]] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = buffer.to(torch.promote_types(buffer.dtype, torch.float32))
        return self


def power_step(matrices_LMD: Tensor, right_LD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One power step: v along Wu, u′ along Wᵀv, and σ = vᵀWu′, never above the largest singular value.

    Args:
        matrices_LMD: W of L layers.
        right_LD: u, of length one.

    Returns:
        v (L, M), u′ (L, D) and σ (L,).

    Example:
        >>> left, right, size = power_step(torch.diag(torch.tensor([3.0, 0.0])).unsqueeze(0), torch.ones(1, 2))
        >>> left.tolist(), right.tolist(), size.tolist()
        ([[1.0, 0.0]], [[1.0, 0.0]], [3.0])
    """
    with torch.autocast(matrices_LMD.device.type, enabled=False):
        across_LM = (matrices_LMD @ right_LD.unsqueeze(-1)).squeeze(-1)
        after_LD = (across_LM.unsqueeze(-2) @ matrices_LMD).squeeze(-2)
        tiny = torch.finfo(after_LD.dtype).tiny
        across_L1, after_L1 = (
            torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=tiny) for x in (across_LM, after_LD)
        )
        return across_LM / across_L1, after_LD / after_L1, (after_L1 / across_L1).squeeze(-1)


@torch.no_grad()
def leading(matrix_MD: Tensor) -> tuple[Tensor, Tensor]:
    """U (D,) of the largest singular value, and that value: by eigenvectors of WᵀW or WWᵀ, whichever is smaller.

    >>> right, size = leading(torch.tensor([[0.0, -2.0], [1.0, 0.0], [0.0, 0.0]]))
    >>> right.abs().tolist(), size.item()
    ([0.0, 1.0], 2.0)
    """
    matrix_MD = matrix_MD.to(torch.promote_types(matrix_MD.dtype, torch.float32))
    with full_precision(matrix_MD.device):
        if matrix_MD.shape[0] <= matrix_MD.shape[1]:
            values, vectors = torch.linalg.eigh(matrix_MD @ matrix_MD.mT)
            right_D = vectors[:, -1] @ matrix_MD
        else:
            values, vectors = torch.linalg.eigh(matrix_MD.mT @ matrix_MD)
            right_D = vectors[:, -1]
    tiny = torch.finfo(right_D.dtype).tiny
    return right_D / right_D.norm().clamp(min=tiny), values[-1].clamp(min=0.0).sqrt()
