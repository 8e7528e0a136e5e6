"""Dong et al. 2021, rank collapse: the residual next to the hidden states, in the composite norm."""

from unsmooth.presets.preset import Preset, register

register(
    Preset(
        name="dong",
        summary="‖X − 1x̄ᵀ‖/‖X‖ with ‖M‖ = √(‖M‖₁‖M‖_∞), x̄ the token mean, special tokens included",
        metrics=("rank_one_residual",),
        tokens="all",
        sites=("residual",),
        aggregation="mean over texts of per-text ratios",
        source="Dong et al. 2021 (arXiv 2103.03404), figure of the residual by layer; "
        "twistedcubic/attention-rank-collapse, paper-plotting/utils.py and walking_casual_transformers.ipynb",
        basis="code",
        quantity="relative residual",
        differs=(
            "the paper takes the vector that minimises the residual, its notebook the token mean, as here",
            "functions.py of the same repository leaves the square root out of the norm",
            "the figure also shows networks without skip connections or MLPs; here the model is as it is",
            "the notebook keeps texts of at least 128 tokens and cuts them there, so that nothing is padded; here "
            "padding is left out",
        ),
    )
)
