"""Gong et al. 2021, patch diversification: absolute cosine of different patches."""

from unsmooth.presets.preset import Preset, register

register(
    Preset(
        name="gong",
        summary="mean of |cos(x_i, x_j)| over pairs of different patches, class token left out",
        metrics=("mean_cosine(absolute=True)",),
        tokens="content",
        sites=("residual",),
        aggregation="mean over images of per-image means",
        source="Gong et al. 2021 (arXiv 2104.12753), patch-wise absolute cosine similarity; "
        "ChengyueGongR/PatchVisionTransformer, which has no code for it, and its issue #7 on the absolute value",
        basis="paper",
        quantity="cosine",
        unknown=(
            "no code shows whether a patch counts with itself, or the class token at all; here neither does",
            "where in the block: issue #3 of the repository reads block outputs, as here, and does not reproduce the "
            "figure",
            "how images were averaged; all have as many patches, so pooling gives the same",
        ),
        needs=("class token",),
    )
)
