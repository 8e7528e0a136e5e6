"""Ethayarajh 2019: self-similarity of words, less the similarity of random ones."""

from unsmooth.presets.preset import Preset, register

register(
    Preset(
        name="ethayarajh_self_similarity",
        summary="mean cosine between a word's vectors in different texts, mean over words in at least five, minus the "
        "mean cosine of random tokens of different texts",
        metrics=("self_similarity",),
        tokens="content",
        sites=("residual",),
        aggregation="mean over words; one number for the random pairs",
        source="Ethayarajh 2019 (arXiv 1909.00512), definition 1 and anisotropy baseline; "
        "kawine/contextual, analyze.py",
        basis="code",
        quantity="word similarity",
        unknown=("whether special tokens were among the words: that is decided before analyze.py; here they are not",),
        differs=(
            "a word is a token id here, a whole word there",
            "all pairs here; at most 1,000 drawn pairs of a word, and 1,000 random pairs drawn with replacement, there",
            "the interval is that of the first term: the random pairs count as exact",
        ),
        needs=("words",),
        minus="random_pair_cosine",
    )
)
