from __future__ import annotations

from typing import Any

import pytest

from tests.remedies.hosts import BY_NAME
from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.remedies.layers import choose_layers


@pytest.mark.parametrize(
    ("layers", "chosen"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        (3, [3]),
        (-1, [7]),
        ([5, 0, -1, 7], [0, 5, 7]),
        ((2,), [2]),
        (range(1, 8, 3), [1, 4, 7]),
        (slice(None, None, 4), [0, 4]),
        (slice(-2, None), [6, 7]),
        (0.5, [0, 1, 2, 3]),
        (-0.25, [6, 7]),
        (1.0, [0, 1, 2, 3, 4, 5, 6, 7]),
        (-1.0, [0, 1, 2, 3, 4, 5, 6, 7]),
        (0.01, [0]),
        (-0.01, [7]),
    ],
)
def test_chosen(layers: Any, chosen: list[int]) -> None:
    assert choose_layers(layers, 8) == chosen


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (8, "layers from 0 to 7"),
        (-9, "layers from 0 to 7"),
        ([0, 8], "layers from 0 to 7"),
        ([], "at least one of 8 layers"),
        (slice(8, None), "at least one of 8 layers"),
        (0.0, "fraction of depth between -1 and 1"),
        (1.5, "fraction of depth between -1 and 1"),
        (-2.0, "fraction of depth between -1 and 1"),
        (float("nan"), "fraction of depth between -1 and 1"),
        (True, "layers as indices"),
        ([True], "layers as indices"),
        ([0.5], "layers as indices"),
        ("all", "layers as indices"),
        ({0, 1}, "layers as indices"),
        (object(), "layers as indices"),
        (slice("a", None), r"layers as indices, .* but got slice\('a', None, None\)"),
        (slice(0, 0.5), "layers as indices"),
        (slice(0, 2, 0), "layers as indices"),
    ],
)
def test_refused(layers: Any, message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        choose_layers(layers, 8)


def test_only_chosen_layers_change() -> None:
    host = BY_NAME["bert"]
    model = remedies.apply(host.model(), "deescalate", layers=[0, -1])
    assert [hasattr(block, "unsmooth") for block in model.encoder.layer] == [True, False, True]
    assert remedies.applied(model)[0].layers == (0, 2)
