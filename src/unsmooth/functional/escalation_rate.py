"""Escalation rate: the share of the remaining diversity that a step from x to y removes."""

from __future__ import annotations

from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import diversity_of, ratio
from unsmooth.functional._tokens import Tokens, pair_of


@metric(
    definition="1 − t_div(y)/t_div(x), t_div = ‖(I − Π)X‖²/‖X‖², Π the mean over tokens; a reconstruction of the rate",
    paper="ours, after the escalation of token similarity in Yu & Zhang 2023 (arXiv 2312.06182)",
    cost="O(nd)",
    chance=lambda n, d: 0.0,
    chance_note="approximately 0 between two independent sets of isotropic tokens",
    degenerate="0 where t_div(x) = 0: single token, all-zero, equal tokens",
    reads="pair",
    rises_when_alike=True,
    invariances=("permutation", "rotation", "scale", "reflection"),
)
def escalation_rate(
    x: Tensor | Tokens, y: Tensor | Tokens, mask: Tensor | None = None, *, squared: bool = True
) -> Tensor:
    r"""Escalation rate of each sequence from `x`, what a block reads, to `y`, what it hands on.

    .. math:: r(X, Y) = 1 - \frac{t_\text{div}(Y)}{t_\text{div}(X)}
              = \frac{t_\text{sim}(Y) - t_\text{sim}(X)}{1 - t_\text{sim}(X)}

    1 means that all tokens became one, 0 that nothing was lost, less than 0 that tokens moved apart. Yu & Zhang 2023
    (arXiv 2312.06182) speak of token similarity that escalates from block to block. Which number they call its rate
    could not be looked up when this was written: the formula is a reconstruction, under which a geometric fall of
    t_div, their claim, is a constant rate. Do not compare it with figures of the paper.

    Args:
        x: Token vectors (batch, tokens, dim) before the step.
        y: Token vectors after it, over the same tokens.
        mask: Boolean (batch, tokens), True = a real token, for both.
        squared: As in `token_diversity`.

    Returns:
        One value of at most 1 per sequence (batch,); 0 where the tokens of `x` are all the same: a single
        token, an all-zero or empty sequence, exact collapse.

    Example:
        >>> import torch
        >>> x = torch.tensor([[[1.0, 2.0], [1.0, -2.0]]])  # t_div = 8/10
        >>> y = torch.tensor([[[1.0, 1.0], [1.0, -1.0]]])  # t_div = 2/4
        >>> escalation_rate(x, y)
        tensor([0.3750])
    """
    before, after = pair_of(x, y, mask)
    first, last = (diversity_of(one.mean_energy_B, one.centred_energy_B, squared) for one in (before, after))
    return (1.0 - ratio(last, first, otherwise=1.0)).to(before.dtype)
