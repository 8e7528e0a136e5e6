from __future__ import annotations

from typing import Any

import pytest

from tests.training.tiny_runs import tiny
from unsmooth.errors import UnsmoothError
from unsmooth.training.timing import Timetable, share_of, timetable


def table(per_epoch: int = 10, share: int = 8, ranks: int = 1, **changes: Any) -> Timetable:
    return timetable(tiny(**changes), per_epoch, share, ranks)


def test_epochs_are_counted_in_steps() -> None:
    found = table(epochs=3.0, steps=None, evaluate_every=1.0, checkpoint_every=0.5, schedule__warmup=1.5)
    assert (found.steps, found.warmup, found.passes) == (30, 15, 1)
    assert found.evaluations == {10, 20, 30}
    assert found.checkpoints == {5, 10, 15, 20, 25, 30}
    assert [found.epoch_after(step) for step in (0, 5, 30)] == [0.0, 0.5, 3.0]


def test_a_run_in_steps_takes_everything_in_steps() -> None:
    found = table(steps=25, evaluate_every=10.0, checkpoint_every=0.0, measuring__every=10.0, measuring__at=(1.0, 99.0))
    assert found.evaluations == {10, 20, 25}
    assert found.checkpoints == {25}
    assert found.measurements == {0, 1, 10, 20, 25}


def test_what_is_due_more_often_than_once_a_step_is_due_every_step() -> None:
    assert table(epochs=1.0, steps=None, checkpoint_every=0.01).checkpoints == set(range(1, 11))


def test_accumulated_micro_batches_make_fewer_steps() -> None:
    found = table(epochs=3.0, steps=None, batch=32, micro_batch=8)
    assert (found.passes, found.steps) == (4, 8)  # 30 micro-batches: round(7.5)
    assert found.batches_before(3) == 12


@pytest.mark.parametrize(("ramp", "steps", "passes"), [(0.5, 40, 4), (1.0, 30, 7), (0.3, 10, 2)])
def test_the_ramp_grows_to_the_full_batch_and_is_counted(ramp: float, steps: int, passes: int) -> None:
    found = table(steps=steps, batch=8 * passes, micro_batch=8, ramp=ramp)
    sizes = [found.passes_of(step) for step in range(steps)]
    ramped = round(ramp * steps)
    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert set(sizes[ramped:]) <= {passes}
    # Linear: never a micro-batch and a half away from the straight line.
    line = [1 + (passes - 1) * step / ramped for step in range(ramped)]
    assert max(abs(size - straight) for size, straight in zip(sizes, line, strict=False)) < 1.5
    assert [found.batches_before(step) for step in range(steps + 1)] == [sum(sizes[:step]) for step in range(steps + 1)]


def test_shares() -> None:
    assert share_of(tiny(batch=32), 4) == 8
    assert share_of(tiny(batch=32, micro_batch=4), 4) == 4
    with pytest.raises(UnsmoothError, match=r"a batch that 3 processes divide but got 32\. Try --set batch=30"):
        share_of(tiny(batch=32), 3)
    with pytest.raises(UnsmoothError, match=r"a batch that 2 x 6 samples divide but got 32\. Try --set batch=24"):
        table(batch=32, share=6, ranks=2)


def test_no_sequences_no_measurement() -> None:
    assert table(measuring__sequences=0, measuring__every=1, measuring__at=(2,)).measurements == frozenset()
    assert table(measuring__sequences=1, measuring__every=0, measuring__at=(2,)).measurements == {0, 2, 4}
