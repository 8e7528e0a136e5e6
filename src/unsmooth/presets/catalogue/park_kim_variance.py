"""Park & Kim 2022: feature-map variance."""

from unsmooth.presets.preset import Preset, register

register(
    Preset(
        name="park_kim_variance",
        summary="variance of each feature over the patches of an image (divided by n − 1), mean over features, class "
        "token left out",
        metrics=("feature_map_variance",),
        tokens="content",
        sites=("residual", "mid"),
        aggregation="mean over images and features",
        source="Park & Kim 2022 (arXiv 2202.06709), figure 9; xxxnell/how-do-vits-work, featuremap_variance.ipynb",
        basis="code",
        quantity="variance",
        unknown=("how many images are behind the figure: the notebook takes one batch",),
        needs=("class token",),
    )
)
