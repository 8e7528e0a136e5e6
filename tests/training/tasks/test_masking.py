"""What is hidden: exactly so much, evenly, by the sequence's key alone, and never to be seen."""

from __future__ import annotations

import numpy
import torch

from unsmooth import keyed
from unsmooth.training.data.tokenizing import MASK
from unsmooth.training.tasks.masked import hide_tokens

VOCABULARY, LENGTH, COUNT = 105, 40, 10


def hidden(sequences: int = 500) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    ids = torch.from_numpy(numpy.random.default_rng(0).integers(5, VOCABULARY, (sequences, LENGTH)))
    found = hide_tokens(ids, keyed.keys(1, torch.arange(sequences)), share=0.25, vocabulary=VOCABULARY)
    return ids.numpy(), found.inputs.numpy(), found.at.numpy(), found.targets.numpy()


def test_counts_are_exact_in_every_sequence() -> None:
    ids, inputs, at, targets = hidden()
    assert at.shape == (500, COUNT)
    for row in range(len(ids)):
        assert len(set(at[row].tolist())) == COUNT
        numpy.testing.assert_array_equal(targets[row], ids[row][at[row]])
        elsewhere = numpy.setdiff1d(numpy.arange(LENGTH), at[row])
        numpy.testing.assert_array_equal(inputs[row][elsewhere], ids[row][elsewhere])
        seen = inputs[row][at[row]]
        assert (seen == MASK).sum() == 8  # 80 % of 10
        assert (seen[8:9] >= 5).all()  # 10 %: another token, which is no special one
        assert seen[9] == targets[row][9]  # 10 %: as it was


def test_places_are_the_smallest_hashes() -> None:
    ids, _, at, _ = hidden(50)
    hashes = keyed.derive(keyed.keys(keyed.keys(1, torch.arange(50)), 0), LENGTH).numpy()
    numpy.testing.assert_array_equal(at, numpy.argsort(hashes, axis=1, kind="stable")[:, :COUNT])
    assert ids.shape == (50, LENGTH)


def test_places_and_tokens_are_evenly_spread() -> None:
    _, inputs, at, targets = hidden(4000)
    per_place = numpy.bincount(at.flatten(), minlength=LENGTH)
    expected, deviation = 1000, numpy.sqrt(4000 * 0.25 * 0.75)
    assert abs(per_place - expected).max() < 4.5 * deviation
    others = inputs[numpy.arange(4000), at[:, 8]]
    assert others.min() == 5
    assert others.max() == VOCABULARY - 1
    assert abs(numpy.bincount(others, minlength=VOCABULARY)[5:] - 40).max() < 4.5 * numpy.sqrt(40)
    # What stands there says nothing about what was there: equal as often as chance has it.
    assert abs((others == targets[:, 8]).mean() - 1 / 100) < 4.5 * numpy.sqrt(0.01 * 0.99 / 4000)


def test_a_sequence_is_hidden_the_same_in_any_batch() -> None:
    ids = torch.randint(5, VOCABULARY, (6, LENGTH), generator=torch.Generator().manual_seed(0))
    keys = keyed.keys(9, torch.arange(6))
    whole = hide_tokens(ids, keys, share=0.25, vocabulary=VOCABULARY)
    part = hide_tokens(ids[[4, 1]], keys[[4, 1]], share=0.25, vocabulary=VOCABULARY)
    for one, other in zip(whole, part, strict=True):
        assert torch.equal(one[[4, 1]], other)
    again = hide_tokens(ids, keyed.keys(10, torch.arange(6)), share=0.25, vocabulary=VOCABULARY)
    assert not torch.equal(again.at, whole.at)
