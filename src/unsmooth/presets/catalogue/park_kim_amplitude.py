"""Park & Kim 2022: relative log amplitude of the highest frequency."""

from unsmooth.presets.preset import Preset, register

register(
    Preset(
        name="park_kim_amplitude",
        summary="log amplitude of the patches' feature maps at the highest frequency on the half-diagonal, minus that "
        "at frequency 0, class token left out",
        metrics=("relative_log_amplitude",),
        tokens="content",
        sites=("residual", "mid"),
        aggregation="mean over images and features of logarithms",
        source="Park & Kim 2022 (arXiv 2202.06709), figures 2a and 8; xxxnell/how-do-vits-work, fourier_analysis.ipynb",
        basis="code",
        quantity="log amplitude",
        unknown=("how many images are behind the figures: the notebook has one, and says to use the validation set",),
        differs=("the transform is in float64 here",),
        needs=("class token",),
    )
)
