"""Metrics across sequences, against loops over all pairs in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.functional.cases import gaussian
from tests.functional.references import ENTRIES, random_pair_cosine
from unsmooth import functional as uf
from unsmooth.errors import UnsmoothError
from unsmooth.functional import METRICS, Occurrences, SequenceMeans
from unsmooth.functional._occurrences import content_keys

SENTENCES = [[4, 5, 6, 4], [5, 4], [6, 5, 7], [4, 5, 6, 4], [7, 8, 5, 4, 9], [5, 9], [4, 8, 8]]
WIDE = 8


def batch(sentences: list[list[int]], left: bool = False, width: int = WIDE) -> tuple[Tensor, Tensor]:
    """Ids and mask, padded with an id that is also a word."""
    ids, mask = torch.full((len(sentences), width), 4), torch.zeros(len(sentences), width, dtype=torch.bool)
    for row, sentence in enumerate(sentences):
        span = slice(width - len(sentence), width) if left else slice(0, len(sentence))
        ids[row, span], mask[row, span] = torch.tensor(sentence), True
    return ids, mask


def vectors(ids: Tensor, mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """A vector for each real token that depends on its sequence and place in it alone; NaN at padding."""
    x = torch.full((*ids.shape, 6), torch.nan)
    for row in range(len(ids)):
        x[row, mask[row]] = gaussian(int(mask[row].sum()), 6, seed=row) + 0.5
    return x.to(dtype)


WORD_SETTINGS = [
    (name, options) for name in ("self_similarity", "maximum_explainable_variance") for options in ENTRIES[name].options
]


@pytest.mark.parametrize(("name", "options"), WORD_SETTINGS)
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_word_metrics_agree_with_their_reference(
    name: str, options: dict[str, Any], left: bool, dtype: torch.dtype
) -> None:
    ids, mask = batch(SENTENCES, left)
    x = vectors(ids, mask, dtype)
    real = [row[keep].double().numpy() for row, keep in zip(x, mask, strict=True)]
    want = ENTRIES[name].reference(real, SENTENCES, **options)
    got = METRICS[name].function(x, ids, mask, **options)
    assert len(want) > 0
    np.testing.assert_allclose(got.numpy(), want, atol=1e-12)


@pytest.mark.parametrize("name", ["self_similarity", "maximum_explainable_variance"])
def test_broken_vectors_and_rare_words_do_not_count(name: str) -> None:
    function = METRICS[name].function
    ids, mask = batch(SENTENCES)
    x = vectors(ids, mask)
    assert function(x, ids, mask, contexts=7).shape == (0,)
    x[1, 1] = torch.inf  # word 4 in the second sentence
    without = [sentence if row != 1 else [5] for row, sentence in enumerate(SENTENCES)]
    real = [row[keep].double().numpy() for row, keep in zip(x, mask, strict=True)]
    real[1] = real[1][:1]
    want = ENTRIES[name].reference(real, without, contexts=3)
    np.testing.assert_allclose(function(x, ids, mask, contexts=3).numpy(), want, atol=1e-12)


def test_equal_vectors_and_zero_vectors() -> None:
    words = torch.full((6,), 3)
    same = Occurrences((torch.ones(6, 4) / 3), words)
    assert uf.self_similarity(same).tolist() == pytest.approx([1.0])
    assert uf.maximum_explainable_variance(same).tolist() == [1.0]
    nothing = Occurrences(torch.zeros(6, 4), words)
    assert uf.self_similarity(nothing).tolist() == [ENTRIES["self_similarity"].zero]
    assert uf.maximum_explainable_variance(nothing).tolist() == [ENTRIES["maximum_explainable_variance"].zero]


def test_a_key_names_the_content_and_not_the_padding() -> None:
    one, two = content_keys(*batch(SENTENCES)), content_keys(*batch(SENTENCES, left=True, width=11))
    assert torch.equal(one, two)
    assert one[0] == one[3]
    assert len(one.unique()) == len(SENTENCES) - 1
    turned = content_keys(*batch([sentence[::-1] for sentence in SENTENCES]))
    assert turned[1] != one[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (None, r"Expected `words` of integers of shape \(2, 3\) but got None. Try the token ids"),
        (torch.zeros(2, 3), "Expected `words` of integers .* but got torch.float32"),
        (torch.zeros(2, 4, dtype=torch.long), r"but got torch.int64 of shape \(2, 4\)"),
    ],
)
def test_words_must_fit(words: Tensor | None, message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        uf.self_similarity(gaussian(2, 3, 4), words)
    with pytest.raises(UnsmoothError, match="contexts as a whole number of at least 2 but got 1"):
        uf.self_similarity(gaussian(2, 3, 4), torch.zeros(2, 3, dtype=torch.long), contexts=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_random_pairs_agree_with_all_pairs(dtype: torch.dtype) -> None:
    ids, mask = batch(SENTENCES)
    x = vectors(ids, mask, dtype)
    x[2, 1] = 0.0
    real = [row[keep].double().numpy() for row, keep in zip(x, mask, strict=True)]
    assert uf.random_pair_cosine(x, mask).item() == pytest.approx(random_pair_cosine(real), abs=1e-6)
    x[4, 0] = torch.nan
    mask[5] = False
    assert uf.random_pair_cosine(x, mask).item() == pytest.approx(
        random_pair_cosine([one for row, one in enumerate(real) if row not in (4, 5)]), abs=1e-6
    )


def test_sums_over_batches_are_those_of_all() -> None:
    x = gaussian(9, 5, 4) + 1.0
    parts = SequenceMeans.of(x[:4]) + SequenceMeans.of(x[4:])
    assert uf.random_pair_cosine(parts).item() == pytest.approx(uf.random_pair_cosine(x).item(), abs=1e-12)
    assert math.isnan(uf.random_pair_cosine(x[:1]).item())


def test_chance_of_random_pairs_is_zero() -> None:
    assert abs(uf.random_pair_cosine(gaussian(400, 8, 16)).item()) < 4 / (400 * 8)
