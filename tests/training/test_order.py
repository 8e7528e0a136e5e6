from __future__ import annotations

import pytest
import torch

from unsmooth.errors import UnsmoothError
from unsmooth.training.order import Order, mirrored_share
from unsmooth.training.place import Place

CPU = torch.device("cpu")


def epoch(order: Order, number: int) -> torch.Tensor:
    order.begin(number)
    return torch.stack([order.take(torch.tensor(batch)) for batch in range(order.batches)])


def test_an_epoch_has_every_sample_once_but_those_of_a_batch_that_is_not_full() -> None:
    order = Order(23, 5, seed=3, place=Place(CPU))
    found = epoch(order, 0).flatten().tolist()
    assert order.batches == 4
    assert len(set(found)) == 20
    assert set(found) <= set(range(23))
    assert found != sorted(found)


def test_epochs_and_seeds_differ_and_come_again() -> None:
    order = Order(40, 8, seed=0, place=Place(CPU))
    first, second = epoch(order, 0), epoch(order, 1)
    assert not torch.equal(first, second)
    assert torch.equal(epoch(order, 0), first)
    assert not torch.equal(epoch(Order(40, 8, seed=1, place=Place(CPU)), 0), first)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("repeats", [1, 3])
def test_processes_share_each_batch_of_one_process(ranks: int, repeats: int) -> None:
    share = 6
    alone = Order(72, share * ranks, seed=5, place=Place(CPU), repeats=repeats)
    parts = [Order(72, share, seed=5, place=Place(CPU, rank, ranks), repeats=repeats) for rank in range(ranks)]
    assert {part.batches for part in parts} == {alone.batches}
    whole = epoch(alone, 2)
    shared = [epoch(part, 2) for part in parts]
    for batch in range(alone.batches):
        together = torch.cat([one[batch] for one in shared])
        assert sorted(together.tolist()) == sorted(whole[batch].tolist())
    # A sample and its copy number belong together on whichever process they are.
    pairs = {(int(sample), int(copy)) for sample, copy in zip(whole[0], alone.copy, strict=True)}
    found = {
        (int(sample), int(copy))
        for part, one in zip(parts, shared, strict=True)
        for sample, copy in zip(one[0], part.copy, strict=True)
    }
    assert found == pairs


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_processs_mirror_image_is_that_of_the_whole_batch(ranks: int) -> None:
    total = 6 * ranks
    for rank in range(ranks):
        mine = mirrored_share(6, Place(CPU, rank, ranks))
        assert torch.equal(mine.flip(0), total - 1 - mine)
    everything = torch.cat([mirrored_share(6, Place(CPU, rank, ranks)) for rank in range(ranks)])
    assert sorted(everything.tolist()) == list(range(total))


def test_repeats_stand_side_by_side() -> None:
    order = Order(30, 12, seed=0, place=Place(CPU), repeats=3)
    batch = epoch(order, 0)[0].reshape(4, 3)
    assert (batch == batch[:, :1]).all()
    assert len(set(batch[:, 0].tolist())) == 4
    assert order.copy.tolist() == [0, 1, 2] * 4


def test_what_does_not_divide_is_told() -> None:
    with pytest.raises(UnsmoothError, match="a batch that 3 repeats divide but got 8"):
        Order(30, 8, seed=0, place=Place(CPU), repeats=3)
    with pytest.raises(UnsmoothError, match="at least one batch of 8 in the data but got 5 samples"):
        Order(5, 8, seed=0, place=Place(CPU))
    with pytest.raises(UnsmoothError, match="an even share of the batch for each process but got 3"):
        Order(30, 3, seed=0, place=Place(CPU, 0, 2))
