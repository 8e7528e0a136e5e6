"""The baseline of token counts against its closed form."""

from __future__ import annotations

import numpy
import pytest
import torch

from unsmooth.training.data.text import held
from unsmooth.training.data.tokenizing import train_bpe
from unsmooth.training.tasks import unigram
from unsmooth.training.tasks.unigram import token_bytes, unigram_nats


def test_nats_are_those_of_smoothed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = numpy.random.default_rng(0).integers(0, 7, 1000).astype(numpy.uint8)
    counts = numpy.bincount(ids, minlength=9) + 1.0
    expected = -numpy.log(counts / counts.sum())
    numpy.testing.assert_allclose(unigram_nats(held(ids), 9).numpy(), expected, rtol=1e-14)
    monkeypatch.setattr(unigram, "_PIECE", 64)  # in many pieces
    numpy.testing.assert_allclose(unigram_nats(held(ids), 9).numpy(), expected, rtol=1e-14)


def test_bytes_of_tokens_add_up_to_the_text() -> None:
    text = "Wie weiß der Bär, daß 東京 naß ist? naïve, naïve, naïve! " * 5
    tokenizer = train_bpe([text], 300)
    ids = torch.from_numpy(tokenizer.encode(text.encode()))
    sizes = token_bytes(tokenizer)
    assert sizes[ids.long()].sum() == len(text.encode())
    assert sizes[:5].sum() == 0
    assert sizes.max() > 1
