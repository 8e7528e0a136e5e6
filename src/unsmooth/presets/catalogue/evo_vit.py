"""Evo-ViT, Xu et al. 2022: signed cosine of the patches, in the form that a reader posted."""

from unsmooth.presets.preset import Preset, register

register(
    Preset(
        name="evo_vit",
        summary="mean of cos(x_i, x_j) over pairs of different patches, class token left out",
        metrics=("mean_cosine",),
        tokens="content",
        sites=("residual",),
        aggregation="mean over images of per-image means",
        source="YifanXu74/Evo-ViT issue #4, about figure 4b of Xu et al. 2022 (arXiv 2108.01390)",
        basis="thread",
        quantity="cosine",
        unknown=(
            "how the paper's own figure was computed: the code in the thread is a reader's, whose curve went the other "
            "way, and the answer does not say what differs",
            "how images were averaged: the code looks at the first of a batch",
        ),
        differs=(
            "it is taken at the input of each block, so layers 0 to L − 1 of these; the output of the last is here too",
        ),
        needs=("class token",),
    )
)
