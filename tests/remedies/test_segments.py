"""Remedies where attention sees a memory of earlier segments (Transformer-XL), whose tokens are in no call."""

from __future__ import annotations

import pytest

from unsmooth import networks
from unsmooth.errors import UnsmoothError
from unsmooth.networks import Decoder
from unsmooth.remedies import applied, apply

CONFIG = networks.DecoderConfig(vocabulary=9, depth=2, dim=8, heads=2, hidden=8, length=4, memory=6)


@pytest.mark.parametrize("name", ["gfsa", "spa"])
def test_what_needs_more_of_earlier_tokens_than_keys_and_values_is_refused(name: str) -> None:
    model = Decoder(CONFIG)
    with pytest.raises(UnsmoothError, match=f"{name} cannot be applied.*sees 6 tokens of earlier segments.*memory=0"):
        apply(model, name)
    assert applied(model) == []
    apply(Decoder(networks.DecoderConfig(vocabulary=9, depth=2, dim=8, heads=2, hidden=8)), name)
