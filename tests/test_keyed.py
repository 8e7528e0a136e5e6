import numpy as np
import pytest
import torch
from scipy import stats

from unsmooth import keyed


def _mixed(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.uint32)
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def _reference(base: int, *parts: np.ndarray) -> np.ndarray:
    """The same hash in 32-bit arithmetic that wraps by itself."""
    state = np.asarray(base, np.uint32)
    for part in parts:
        with np.errstate(over="ignore"):
            named = np.asarray(part).astype(np.uint32) * np.uint32(0x9E3779B9) + np.uint32(1)
        state = _mixed(state ^ _mixed(named))
    return state


def test_the_hash_is_32_bit_arithmetic() -> None:
    rows, columns = torch.arange(0, 2**33, 2**27 + 12345)[:, None], torch.arange(50)
    got = keyed.keys(0xFFFFFFFF, rows, 7, columns)
    assert got.dtype == torch.int64
    assert np.array_equal(got.numpy(), _reference(0xFFFFFFFF, rows.numpy(), np.asarray(7), columns.numpy()))


def test_a_number_does_not_depend_on_its_batch() -> None:
    base = keyed.stream(3, "crop")
    whole = keyed.keys(base, 2, torch.arange(100))
    assert torch.equal(whole[40:60], keyed.keys(base, 2, torch.arange(40, 60)))
    assert torch.equal(whole, keyed.keys(base, torch.tensor(2), torch.arange(100)))


@pytest.mark.parametrize("axis", [0, 1])
def test_uniform_is_uniform_and_neighbours_are_independent(axis: int) -> None:
    u_NN = keyed.uniform(keyed.keys(5, torch.arange(600)[:, None], torch.arange(600))).double()
    assert stats.kstest(u_NN.flatten().numpy(), "uniform").pvalue > 1e-3
    first, second = u_NN.narrow(axis, 0, 599), u_NN.narrow(axis, 1, 599)
    assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) < 0.01


def test_normal_is_normal_and_finite() -> None:
    drawn = keyed.normal(keyed.keys(5, torch.arange(100_000)))
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-3
    assert torch.isfinite(keyed.normal(torch.tensor([0, 2**32 - 1]))).all()


def test_integers_are_even_and_below() -> None:
    counts = torch.bincount(keyed.integers(keyed.keys(9, torch.arange(70_000)), 7), minlength=7)
    assert len(counts) == 7
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_streams_of_two_purposes_share_nothing() -> None:
    one = set(keyed.keys(keyed.stream(0, "flip"), torch.arange(2000)).tolist())
    other = set(keyed.keys(keyed.stream(0, "crop"), torch.arange(2000)).tolist())
    assert len(one & other) <= 2
