"""Plain data becomes dataclasses, or the value of another kind is named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from unsmooth.errors import UnsmoothError
from unsmooth.schema import parse


@dataclass(frozen=True)
class Round:
    kind: ClassVar[str] = "round"
    radius: float = 1.0


@dataclass(frozen=True)
class Square:
    kind: ClassVar[str] = "square"
    side: int = 1


@dataclass(frozen=True)
class Drawing:
    name: str
    shape: Round | Square
    size: float
    word: Literal["a", "b"] = "a"
    point: complex | None = None
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    number: int | float = 0
    inner: Drawing | None = None
    about: Any = None


WHOLE: dict[str, Any] = {
    "name": "x",
    "shape": {"kind": "square", "side": 3},
    "size": None,
    "word": "b",
    "point": [1, None],
    "counts": {"a": [1, 2]},
    "number": 2,
    "inner": {"name": "y", "shape": {"kind": "round", "radius": 2}, "size": 1},
    "about": [{"anything": 1}],
}


def test_whole_data_is_read_as_its_types_say() -> None:
    read = parse(Drawing, WHOLE)
    assert read.shape == Square(3)
    assert math.isnan(read.size)
    assert read.point is not None
    assert (read.point.real, math.isnan(read.point.imag)) == (1.0, True)
    assert read.counts == {"a": (1, 2)}
    assert (read.number, type(read.number)) == (2, int)
    assert read.inner == Drawing("y", Round(2.0), 1.0)
    assert read.about == [{"anything": 1}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": 1}, "text at name in plain data but got 1"),
        ({"name": None}, "text at name"),
        ({"size": True}, "a number at size .* True"),
        ({"size": "1"}, "a number at size"),
        ({"shape": {"kind": "cube"}}, "a kind of round, square at shape .* 'cube'"),
        ({"shape": {"kind": ["round"]}}, "a kind of round, square at shape"),
        ({"shape": {"kind": "square", "side": 1.0}}, "a whole number at shape.side"),
        ({"word": "c"}, "one of 'a', 'b' at word"),
        ({"word": []}, "one of 'a', 'b' at word"),
        ({"point": [1]}, "a pair of numbers at point"),
        ({"counts": {"a": [1, "2"]}}, r"a whole number at counts\.'a'\[1\]"),
        ({"counts": []}, "an object at counts"),
        ({"inner": 3}, "an object at inner"),
        ({"nme": 3}, "a known entry but got 'nme'. Did you mean 'name'"),
    ],
)
def test_a_value_of_another_kind_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsmoothError, match=words):
        parse(Drawing, WHOLE | change)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UnsmoothError, match="entry 'name'"):
        parse(Drawing, {"shape": {"kind": "round"}, "size": 1})
    with pytest.raises(UnsmoothError, match=r"a list of 2 at \[0\]"):
        parse(tuple[tuple[int, int], ...], [[1]])
