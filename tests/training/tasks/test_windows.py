"""Stretches of a text: on the device or from disk, the same to the bit, for one process and for two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch

from tests.training.tasks.building import here
from unsmooth.training.data.text import Tokens
from unsmooth.training.place import Place
from unsmooth.training.tasks import windows
from unsmooth.training.tasks.windows import ResidentWindows, Shuffled, Starts, StreamedWindows, Streams, open_windows

Maker = Callable[[Place], Starts]


def on_disk(folder: Path, count: int, dtype: str) -> tuple[Tokens, numpy.ndarray]:
    ids = numpy.random.default_rng(1).integers(0, 250 if dtype == "uint8" else 60_000, count).astype(dtype)
    path = folder / f"{dtype}.bin"
    path.write_bytes(ids.tobytes())
    return Tokens(path, dtype, count), ids


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32"])
@pytest.mark.parametrize("kind", ["shuffled", "streams"])
def test_streaming_equals_resident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, kind: str) -> None:
    tokens, ids = on_disk(tmp_path, 1000, dtype)
    make: Maker = (
        (lambda place: Shuffled(62, 16, 8, 5, place))
        if kind == "shuffled"
        else (lambda place: Streams(1000, 8, 15, 4, place))
    )
    resident = open_windows(tokens, make, 16, here())
    monkeypatch.setattr(windows, "RESIDENT", 100)
    streamed = open_windows(tokens, make, 16, here())
    assert isinstance(resident, ResidentWindows)
    assert isinstance(streamed, StreamedWindows)
    # In turn, over the end of an epoch, then as after a resume.
    for batch in [*range(resident.starts.batches + 3), 40, 41, 5]:
        resident.begin(batch)
        streamed.begin(batch)
        one, other = resident.take(torch.tensor(batch)), streamed.take(torch.tensor(batch))
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
        for start, row in zip(one[0].tolist(), one[1].numpy(), strict=True):
            numpy.testing.assert_array_equal(row, ids[start : start + 16])


def test_an_epoch_has_every_stretch_once_for_any_number_of_processes() -> None:
    whole = Shuffled(16, 10, 8, 5, here())
    halves = [Shuffled(16, 10, 4, 5, here(rank, 2)) for rank in (0, 1)]
    for epoch in range(2):
        seen = []
        for batch in range(epoch * 2, epoch * 2 + 2):
            for one in (whole, *halves):
                one.begin(batch)
            together = whole.take(torch.tensor(batch)).tolist()
            apart = [start for half in halves for start in half.take(torch.tensor(batch)).tolist()]
            assert sorted(together) == sorted(apart)
            seen += together
        assert sorted(seen) == list(range(0, 160, 10))
