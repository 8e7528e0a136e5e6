"""Reading ahead: what arrives, in what order, once each, in tensors that stay."""

from __future__ import annotations

import threading

import pytest
import torch

from unsmooth.training.tasks.batches import Feed


def test_batches_arrive_in_place_and_are_read_once() -> None:
    read: list[int] = []
    threads: set[int] = set()

    def fetch(batch: int) -> tuple[torch.Tensor, ...]:
        read.append(batch)
        threads.add(threading.get_ident())
        return torch.full((3,), batch), torch.full((2, 2), -batch)

    feed = Feed(fetch, torch.device("cpu"))
    places = None
    for batch in (0, 0, 1, 2, 3, 7, 8, 9, 2):
        feed.bring(batch)
        assert feed.tensors[0].tolist() == [batch] * 3
        assert feed.tensors[1][1, 1] == -batch
        places = places or [one.data_ptr() for one in feed.tensors]
        assert [one.data_ptr() for one in feed.tensors] == places
    # One ahead once batches come in turn; a jump drops what was ahead, and nothing is ahead of the first.
    feed._thread.shutdown(wait=True)
    assert read == [0, 1, 2, 3, 4, 7, 8, 9, 10, 2]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_what_goes_wrong_is_told_where_it_is_needed() -> None:
    def fetch(batch: int) -> tuple[torch.Tensor, ...]:
        if batch == 2:
            raise ValueError("a broken file")
        return (torch.zeros(1),)

    feed = Feed(fetch, torch.device("cpu"))
    feed.bring(0)
    feed.bring(1)
    with pytest.raises(ValueError, match="a broken file"):
        feed.bring(2)
