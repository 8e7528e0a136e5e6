"""Made-up data must be learnable, and other data for other seeds."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy
import pytest
import torch

from unsmooth.errors import UnsmoothError
from unsmooth.training.data.synthetic import synthetic_images, synthetic_text, synthetic_words


def test_images_can_be_told_apart_by_colour_but_not_perfectly() -> None:
    images = synthetic_images(classes=10, train=500, test=200, size=16)
    train = images.train_images.float().mean((2, 3))
    test = images.test_images.float().mean((2, 3))
    centres = torch.stack([train[images.train_labels == each].mean(0) for each in range(10)])
    accuracy = (torch.cdist(test, centres).argmin(1) == images.test_labels).float().mean()
    assert 0.4 < accuracy < 0.99


def test_images_are_what_was_asked_for() -> None:
    images = synthetic_images(classes=7, train=30, test=15, size=9, seed=3)
    assert images.train_images.shape == (30, 3, 9, 9)
    assert images.train_images.dtype == torch.uint8
    assert images.test_labels.tolist() == [n % 7 for n in range(15)]
    assert images.synthetic
    assert not torch.equal(images.train_images[:15], images.test_images)
    # The first ones are the same however many there are, and others for another seed.
    more = synthetic_images(classes=7, train=60, test=15, size=9, seed=3)
    assert torch.equal(more.train_images[:30], images.train_images)
    assert not torch.equal(synthetic_images(7, 30, 15, 9, seed=4).train_images, images.train_images)
    with pytest.raises(UnsmoothError, match="at least one class"):
        synthetic_images(classes=0)


def entropy(counts: Counter[object]) -> float:
    shares = numpy.array(list(counts.values()), dtype=float)
    shares /= shares.sum()
    return float(-(shares * numpy.log2(shares)).sum())


def test_words_tell_the_next_word() -> None:
    words = synthetic_words(600_000).replace(".", " .").split()
    alone = entropy(Counter(words))
    given = entropy(Counter(pairwise(words))) - alone
    assert given < alone - 1.5  # more than 1.5 bits of the next word are known from the last
    assert given > 1
    assert len(synthetic_words(1000)) == 1000
    assert synthetic_words(1000) == synthetic_words(2000)[:1000]
    assert synthetic_words(1000) != synthetic_words(1000, seed=1)


@pytest.mark.parametrize(("tokenizer", "special"), [("bytes", False), ("bytes", True), ("bpe", True)])
def test_text_as_tokens(tokenizer: str, special: bool) -> None:
    text = synthetic_text(20_000, tokenizer=tokenizer, vocabulary=500, special=special)  # type: ignore[arg-type]
    assert len(text.train) == 18_000
    assert text.test is not None
    assert len(text.valid) == len(text.test) == 1000
    assert text.vocabulary == {"bytes": 261 if special else 256, "bpe": 500}[tokenizer]
    assert text.synthetic
    ids = text.train[:]
    assert int(ids.min()) >= (5 if special else 0)
    assert int(ids.max()) < text.vocabulary
    told = text.tokenizer.decode(ids.tolist())
    assert synthetic_words(200_000).startswith(told)
