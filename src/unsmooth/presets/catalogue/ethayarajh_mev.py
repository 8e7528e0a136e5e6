"""Ethayarajh 2019: maximum explainable variance."""

from unsmooth.presets.preset import Preset, register

register(
    Preset(
        name="ethayarajh_mev",
        summary="share of the variance of a word's vectors in different texts that their first principal component "
        "explains, mean over words in at least five",
        metrics=("maximum_explainable_variance",),
        tokens="content",
        sites=("residual",),
        aggregation="mean over words",
        source="Ethayarajh 2019 (arXiv 1909.00512), definition 3; kawine/contextual, analyze.py",
        basis="code",
        quantity="explained variance",
        unknown=("whether special tokens were among the words: that is decided before analyze.py; here they are not",),
        differs=(
            "not adjusted: the paper takes the same share for random words off it, which is not measured here",
            "centred, as the code's principal components are; the formula of the paper is not",
            "a word is a token id here, a whole word there; the code leaves layer 0 out",
        ),
        needs=("words",),
    )
)
