"""Which published definitions are taken for models of images and sounds, and why the others are not."""

from __future__ import annotations

import pytest

import unsmooth
from tests.models.stack_entries import STACK_ENTRIES
from unsmooth.errors import UnsmoothError

BY_NAME = {entry.name: entry for entry in STACK_ENTRIES}
WORDS = {"ethayarajh_intra_sentence", "ethayarajh_mev", "ethayarajh_self_similarity"}


@pytest.mark.parametrize(
    ("model", "tokens", "blocks"),
    [
        ("swin-shifted", "pixel_values", None),
        ("clip", "pixel_values", "vision_model.encoder.layers.*"),
        ("whisper", "input_features", "encoder.layers.*"),
    ],
)
def test_presets_of_words_are_left_out_where_tokens_have_no_ids(model, tokens, blocks):
    entry = BY_NAME[model]
    data = {tokens: entry.batch()[tokens]}
    found = unsmooth.compare_presets(entry.model(), data, blocks=blocks, progress=False)
    assert {"dong", "vita"} <= set(found.scans)
    assert set(found.left_out) >= WORDS
    assert "which compares words, but got data without" in found.left_out["ethayarajh_mev"]
    with pytest.raises(UnsmoothError, match="token ids for preset 'ethayarajh_mev'"):
        unsmooth.compare_presets(entry.model(), data, presets=["ethayarajh_mev"], blocks=blocks, progress=False)


def test_the_ids_of_a_decoder_are_words():
    entry = BY_NAME["whisper"]
    found = unsmooth.compare_presets(entry.model(), [entry.batch()], blocks="decoder.layers.*", progress=False)
    assert set(found.scans) >= WORDS
