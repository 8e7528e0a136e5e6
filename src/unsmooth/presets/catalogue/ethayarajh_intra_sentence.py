"""Ethayarajh 2019: intra-sentence similarity, less the similarity of random words."""

from unsmooth.presets.preset import Preset, register

register(
    Preset(
        name="ethayarajh_intra_sentence",
        summary="mean cosine between the tokens of a text and their mean, minus the mean cosine of random tokens of "
        "different texts",
        metrics=("intra_sentence_similarity",),
        tokens="content",
        sites=("residual",),
        aggregation="mean over texts of per-text means; one number for the random pairs",
        source="Ethayarajh 2019 (arXiv 1909.00512), definition 2 and anisotropy baseline; "
        "kawine/contextual, analyze.py",
        basis="code",
        quantity="sentence similarity",
        unknown=("whether special tokens were among the words: that is decided before analyze.py; here they are not",),
        differs=(
            "all random pairs here, 1,000 drawn with replacement there",
            "the interval is that of the first term: the random pairs count as exact",
        ),
        needs=("words",),
        minus="random_pair_cosine",
    )
)
