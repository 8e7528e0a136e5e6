"""Wang et al. 2022 (VITA group): absolute cosine, each token with itself included."""

from unsmooth.presets.preset import Preset, register

register(
    Preset(
        name="vita",
        summary="mean of |cos(x_i, x_j)| over all pairs of tokens, i = j included",
        metrics=("mean_cosine(absolute=True, with_self=True)",),
        tokens="all",
        sites=("residual",),
        aggregation="mean over images of per-image means; all images have as many tokens, so pooling gives the same",
        source="Wang et al. 2022 (arXiv 2203.05962), figure 4; an author's snippet in "
        "VITA-Group/ViT-Anti-Oversmoothing issue #2",
        basis="thread",
        quantity="cosine",
        unknown=(
            "whether the class token was in the figure: the snippet measures whatever it is given; here it is in",
            "where in the block: the snippet does not say; here the output of each block",
        ),
        differs=(
            "the snippet's tokens are on the last axis, (…, features, tokens); fed with (…, tokens, features) it "
            "compares features",
            "a zero token is NaN there and counts as cosine 0 here",
        ),
    )
)
