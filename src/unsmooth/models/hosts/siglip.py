"""SigLIP (Zhai et al. 2023, arXiv 2303.15343): CLIP's blocks, without a class token and without a causal mask.

Its texts are padded to a fixed length and nothing is masked, so padding takes part: `tokens="all"` without an
"attention_mask" counts it, as the model does.
"""

from unsmooth.models.host import Host, register
from unsmooth.models.hosts.clip import tower_reads, tower_taps, tower_wiring

register(
    Host(
        name="siglip",
        blocks=("SiglipEncoderLayer",),
        taps=tower_taps,
        example="google/siglip-base-patch16-224, both towers",
        wiring=tower_wiring,
        attention_module=lambda block: "self_attn",
        reads=tower_reads,
    ),
)
