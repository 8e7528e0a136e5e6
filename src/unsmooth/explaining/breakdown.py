"""The measured change of t_sim over a layer, by cause: parts that sum to it exactly.

The layer is walked step by step and t_sim measured after each. The two parts of the attention branch, its token mean
ΠO and the rest O − ΠO, are added in both orders and their effects averaged, so that neither has the first word
(Shapley's value for two). A pre-norm layer's norms act inside the branches and count as part of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from unsmooth.explaining.jacobian import Split

PARTS = ("attention_mean", "attention_rest", "mlp", "norm")


def break_down(sites: Mapping[str, Tensor], split: Split) -> dict[str, Tensor] | None:
    """Each part's share (batch,) in t_sim(output) − t_sim(input); None where a branch cannot be seen.

    Args:
        sites: Tensors of one layer by site: input, attention, mlp, output, and mid where there is one.
        split: The token mean over real tokens.
    """
    if not {"attention", "mlp"} <= set(sites):
        return None
    before, branch, after = sites["input"], sites["attention"], sites["output"]
    common, rest = split.mean_part(branch), split.rest_part(branch)
    start, end = split.similarity(before), split.similarity(after)
    with_common, with_rest = split.similarity(before + common), split.similarity(before + rest)
    attended = before + branch
    with_both = split.similarity(attended)
    # Where there is no stream between the branches, they run side by side.
    middle = sites.get("mid", attended)
    at_middle, with_mlp = split.similarity(middle), split.similarity(middle + sites["mlp"])
    return {
        "attention_mean": ((with_common - start) + (with_both - with_rest)) / 2,
        "attention_rest": ((with_rest - start) + (with_both - with_common)) / 2,
        "mlp": with_mlp - at_middle,
        "norm": (at_middle - with_both) + (end - with_mlp),
    }
