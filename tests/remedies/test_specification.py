"""Remedies as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import unsmooth
from unsmooth import UnsmoothError, remedies
from unsmooth.remedies.specification import (
    Wish,
    apply_wishes,
    parse_layers,
    parse_remedies,
    parse_settings,
    write_layers,
)


@pytest.mark.parametrize(
    ("text", "wishes"),
    [
        ("deescalate", [Wish("deescalate")]),
        (" deescalate() ", [Wish("deescalate")]),
        ("deescalate(tau=.5, place='values')", [Wish("deescalate", {"tau": 0.5, "place": "values"})]),
        ("deescalate(place=values)", [Wish("deescalate", {"place": "values"})]),
        ("deescalate(tau=+1)", [Wish("deescalate", {"tau": 1.0})]),
        ("residual_scaling(scale=None)", [Wish("residual_scaling", {"scale": None})]),
        ("deescalate(layers='4:8')", [Wish("deescalate", {}, slice(4, 8))]),
        ("deescalate(layers=[0, 2])", [Wish("deescalate", {}, [0, 2])]),
        ("deescalate(layers=-0.5)", [Wish("deescalate", {}, -0.5)]),
        ("deescalate(mean=all, allow_leak=True)", [Wish("deescalate", {"mean": "all"}, None, True)]),
        ("deescalate+residual_scaling + smooth", [Wish("deescalate"), Wish("residual_scaling"), Wish("smooth")]),
    ],
)
def test_reading(text: str, wishes: list[Wish]) -> None:
    assert list(parse_remedies(text)) == wishes
    assert list(parse_remedies(" + ".join(map(str, wishes)))) == wishes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "remedies such as"),
        ("deescalate(", "remedies such as"),
        ("deescalate(0.5)", "remedies such as"),
        ("deescalate * 2", "remedies such as"),
        ("deescalate tau=1", "remedies such as"),
        ("deescalate\0", "remedies such as"),
        ("__import__('os').system('true')", "remedies such as"),
        ("deescalate(tau=__import__('os'))", "remedies such as"),
        ("deescalate(tau=1/2)", "tau between 0.0 and 2.0 but got '1/2'"),
        ("deescalate(tau=-1)", "tau between 0.0 and 2.0 but got -1"),
        ("deescalate(tau=1, tau=2)", "tau once"),
        ("deescalate(stack=2)", "stack as a word, or None but got 2"),
        ("desescalate", "Did you mean 'deescalate'"),
        ("deescalate + residual_scalin", "Did you mean 'residual_scaling'"),
        ("deescalate(ta=1)", "Did you mean 'tau'"),
        ("deescalate(layer=1)", "Did you mean 'layers'"),
        ("deescalate(layers='a')", "layers as indices"),
        ("deescalate(allow_leak=1)", "allow_leak as True or False"),
    ],
)
def test_what_is_no_remedy(text: str, message: str) -> None:
    with pytest.raises(UnsmoothError) as told:
        parse_remedies(text)
    assert message in str(told.value)


def test_settings() -> None:
    wish = Wish("deescalate", {"tau": 0.5}, [1])
    assert parse_settings(wish, ["place=values", "tau = 0.25"]) == Wish(
        "deescalate", {"tau": 0.25, "place": "values"}, [1]
    )
    assert parse_settings(wish, ["layers=0:2", "allow_leak=True"]) == Wish(
        "deescalate", {"tau": 0.5}, slice(0, 2), True
    )
    whole = parse_settings(
        Wish("deescalate", {}, [1], True, "vision"), ["layers=None", "allow_leak=False", "stack=None"]
    )
    assert whole == Wish("deescalate")
    for wrong, message in (("tau", "key=value"), ("=1", "key=value"), ("ta=1", "Did you mean 'tau'")):
        with pytest.raises(UnsmoothError, match=message):
            parse_settings(wish, [wrong])


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("5", 5),
        ("-1", -1),
        ("0,1,5", [0, 1, 5]),
        ("4:8", slice(4, 8)),
        (":-1", slice(None, -1)),
        ("::2", slice(None, None, 2)),
        ("0.5", 0.5),
        ("-0.25", -0.25),
    ],
)
def test_layers(text: str, layers: Any) -> None:
    assert parse_layers(text) == layers
    assert parse_layers(write_layers(layers)) == layers
    assert type(parse_layers(text)) is type(layers)


def test_a_list_of_one_layer() -> None:
    assert parse_layers("3,") == [3]


@pytest.mark.parametrize("text", ["", "a", "1:2:3:4", "1;2", "half", "1,b", "1.5:2"])
def test_what_are_no_layers(text: str) -> None:
    with pytest.raises(UnsmoothError, match="layers as indices, a slice or a fraction"):
        parse_layers(text)


def test_a_seed_draws_the_same_twice_and_nothing_of_the_users(bert_folder: Path) -> None:
    wishes = parse_remedies("sharpen(start=fresh) + deescalate(layers=0)")
    state = torch.get_rng_state()
    ones = [apply_wishes(unsmooth.load(bert_folder), wishes, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), state)
    first, second, third = (unsmooth.models.weight_hash(one) for one in ones)
    assert first == second
    assert first != third
    assert [(one.name, one.layers) for one in remedies.applied(ones[0])] == [
        ("sharpen", (0, 1, 2)),
        ("deescalate", (0,)),
    ]
