"""Dovonon, Bronstein & Kusner 2024: high over low frequency, reconstructed."""

from unsmooth.presets.preset import Preset, register

register(
    Preset(
        name="dovonon",
        summary="‖(I − Π)X‖/‖ΠX‖ in the Frobenius norm, Π the mean over tokens, special tokens included",
        metrics=("hfc_lfc",),
        tokens="all",
        sites=("residual",),
        aggregation="mean over sequences of per-sequence ratios",
        source="Dovonon, Bronstein & Kusner 2024 (arXiv 2401.04301), whose notion of low-pass is that of Wang et al. "
        "2022 (arXiv 2203.05962)",
        basis="reconstructed",
        quantity="high over low frequency",
        unknown=(
            "which number the figures of each version show: this ratio, its logarithm, or a cosine",
            "class and other special tokens, in or out; here they are in",
            "where in the block, and how sequences were averaged; here the output of each block, mean of ratios",
        ),
    )
)
