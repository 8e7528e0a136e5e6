"""What a run of the idealised layer leaves behind: one number per layer for each notion of collapse.

Shape suffixes: L layers (the input is layer 0), N tokens, D dimensions, K singular values.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unsmooth.functional import Tokens, hfc_lfc, mean_cosine, token_similarity

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Trajectory:
    """The tokens at every depth and how alike they are; index 0 is the input, index ℓ follows layer ℓ.

    Attributes:
        token_similarity: t_sim = ‖ΠX‖²/‖X‖².
        mean_cosine: Mean signed cosine over pairs.
        mean_abs_cosine: Mean |cosine| over pairs.
        hfc_lfc: ‖(I − Π)X‖/‖ΠX‖.
        second_singular: σ₂/σ₁ of the token matrix; 0 where there is no second.
        third_singular: σ₃/σ₁; 0 where there is no third.
        log_norm: log ‖X‖ of the stream itself, rescaled or not.
        states_LND: The tokens, each layer's divided by its norm if the run was normalised.
    """

    token_similarity: Tensor
    mean_cosine: Tensor
    mean_abs_cosine: Tensor
    hfc_lfc: Tensor
    second_singular: Tensor
    third_singular: Tensor
    log_norm: Tensor
    states_LND: Tensor

    @classmethod
    def of(cls, units_LND: Tensor, log_norm: Tensor, states_LND: Tensor | None = None) -> Trajectory:
        """Measure all layers at once, on tokens of norm one whatever is kept."""
        tokens = Tokens(units_LND)
        singular_LK = torch.linalg.svdvals(units_LND)
        return cls(
            token_similarity=token_similarity(tokens),
            mean_cosine=mean_cosine(tokens),
            mean_abs_cosine=mean_cosine(tokens, absolute=True),
            hfc_lfc=hfc_lfc(tokens),
            second_singular=_relative(singular_LK, 1),
            third_singular=_relative(singular_LK, 2),
            log_norm=log_norm,
            states_LND=units_LND if states_LND is None else states_LND,
        )

    @property
    def x_ND(self) -> Tensor:
        """The tokens after the last layer."""
        return self.states_LND[-1]

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.log_norm) - 1

    def to_frame(self) -> pandas.DataFrame:
        """One row per layer, the input being layer 0."""
        import pandas

        columns = {one.name: getattr(self, one.name).tolist() for one in fields(self) if one.name != "states_LND"}
        return pandas.DataFrame({"layer": range(self.depth + 1), **columns})


def _relative(singular_LK: Tensor, index: int) -> Tensor:
    if singular_LK.shape[1] <= index:
        return torch.zeros_like(singular_LK[:, 0])
    return singular_LK[:, index] / singular_LK[:, 0]
