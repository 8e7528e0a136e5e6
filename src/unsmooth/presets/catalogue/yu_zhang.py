"""Yu & Zhang 2023: token similarity t_sim, reconstructed."""

from unsmooth.presets.preset import Preset, register

register(
    Preset(
        name="yu_zhang",
        summary="t_sim = ‖ΠX‖²/‖X‖² in the Frobenius norm, Π the mean over tokens, special tokens included",
        metrics=("token_similarity",),
        tokens="all",
        sites=("residual",),
        aggregation="mean over sequences of per-sequence values",
        source="Yu & Zhang 2023 (arXiv 2312.06182), t_sim",
        basis="reconstructed",
        quantity="token similarity",
        unknown=(
            "whether it is a ratio of squared norms, as here, or of norms, token_similarity(squared=False)",
            "class and other special tokens, in or out; here they are in",
            "where in the block, and how sequences were averaged; here the output of each block, mean of values",
        ),
    )
)
