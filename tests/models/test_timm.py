"""The harness over timm's own blocks, where timm is installed; elsewhere a stand-in takes their place."""

from __future__ import annotations

import pytest

from tests.models import test_hosts as hosts
from tests.models.entry import Entry
from tests.models.rebuilding import largest_error
from tests.models.timm_entries import real_entries

pytest.importorskip("timm")
each_entry = pytest.mark.parametrize("entry", real_entries(), ids=lambda entry: entry.name)


@each_entry
def test_sites(entry: Entry) -> None:
    hosts.test_independent_hooks_agree(entry, "none")
    hosts.test_algebra_of_the_block_holds(entry, "none")
    hosts.test_watching_does_not_change_the_output(entry, "none")
    hosts.test_prefix_tokens(entry)


@each_entry
def test_attention_is_rebuilt_from_weights_and_maps(entry: Entry) -> None:
    for fused in (True, False):
        model = entry.model()
        for block in model.blocks:
            block.attn.fused_attn = fused
        assert largest_error(entry, model, "none") < 1e-5


def test_other_attention_of_timm_is_refused() -> None:
    from timm.models.vision_transformer import VisionTransformer

    from unsmooth.errors import UnsmoothError
    from unsmooth.models import value_projection

    model = VisionTransformer(
        img_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2, num_classes=0, scale_attn_norm=True
    )
    with pytest.raises(UnsmoothError, match="nothing between values and output projection"):
        value_projection(model, 0)
