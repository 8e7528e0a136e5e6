"""The grammar of names with options, and what options may be: of everything that is registered, by itself."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.functional.cases import inputs_for
from unsmooth.errors import UnsmoothError
from unsmooth.functional import METRICS, parse_metric
from unsmooth.losses import LOSSES, parse_loss
from unsmooth.presets import PRESETS
from unsmooth.registry import check_names
from unsmooth.remedies.base import REMEDIES
from unsmooth.remedies.checking import checked_options
from unsmooth.remedies.specification import parse_remedies
from unsmooth.scanning.published import find_preset
from unsmooth.spec import (
    LONGEST,
    Option,
    Range,
    Spec,
    checked,
    options_of,
    read,
    read_settings,
    read_sum,
    read_value,
    split_at_commas,
)

TEXT = st.text("ab1 _.,:'\"\\\n()[]=+-é\u2028\0", max_size=9)
NAMES = st.text(string.ascii_lowercase + "_", min_size=1, max_size=8).map(lambda text: f"a{text}")
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
)
VALUES = st.one_of(PLAIN, st.lists(PLAIN, max_size=3), st.lists(PLAIN, max_size=3).map(tuple))


def reading(text: str) -> Spec:
    return read(text, "a name", "another")


@given(NAMES, st.dictionaries(NAMES, VALUES, max_size=4))
def test_what_is_written_is_read_again(name: str, options: dict[str, Any]) -> None:
    spec = Spec(name, options)
    again = reading(str(spec))
    assert again == spec
    assert str(again) == str(spec)
    for value, other in zip(spec.options.values(), (again.options[key] for key in spec.options), strict=True):
        assert type(value) is type(other)  # 1 == 1.0 == True


@given(TEXT, st.sampled_from([parse_metric, parse_loss, parse_remedies, find_preset]))
def test_no_text_leaves_with_another_error(text: str, parse: Callable[[str], object]) -> None:
    with pytest.raises(UnsmoothError) as told:
        parse(text)
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("+1", 1),
        ("1_000", 1000),
        (".5", 0.5),
        ("1e-05", 1e-5),
        ("-2.", -2.0),
        ("True", True),
        ("'True'", "True"),
        ("no", "no"),
        ("4:8", "4:8"),
        (":-1", ":-1"),
        ("1/2", "1/2"),
        ("a-b.c", "a-b.c"),
        ("[1, 'a', None,]", [1, "a", None]),
        ("()", ()),
        ("(1)", 1),
        ("(1,)", (1,)),
        ("((1, 2), [3])", ((1, 2), [3])),
        (r"'\u00e9 \'quoted\''", "é 'quoted'"),
    ],
)
def test_values(text: str, value: object) -> None:
    [found] = reading(f"a(b = {text})").options.values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "a(", "a)", "a(b)", "a(b=)", "a(=1)", "a(1)", "a(b=1", "a(b=1)c", "a b", "a(b=1 c=2)", "a(,)", "3a"),
        *(
            "a(b=[1)",
            "a(b=(1]",
            "a(b={})",
            "a(**b)",
            "a(b=c(d))",
            "a(b='c)",
            "a(b=\"c')",
            "a(b=1)(c=2)",
            "a\0",
            "a + b",
        ),
        *(
            "a(b=[[[[[1]]]]])",
            "a(b=" + "(" * 4000,
            "[" * 4000,
            "a(b='\\d')",
            "a(b='\ud800\\x')",
            "a(b=f'c')",
            "a.b()()",
        ),
    ],
)
def test_what_the_grammar_does_not_have(text: str) -> None:
    with pytest.raises(UnsmoothError, match=r"^Expected a name but got .*\. Try another\.$") as told:
        reading(text)
    assert len(str(told.value)) < 130


def test_long_texts_are_refused_unread() -> None:
    with pytest.raises(UnsmoothError, match=r"in up to 4,096 characters but got 1,000,000\. Try another\."):
        reading("(" * 10**6)
    assert reading("a" * LONGEST).name == "a" * LONGEST
    with pytest.raises(UnsmoothError, match="Expected a name but got None"):
        reading(None)  # type: ignore[arg-type]


def test_an_option_comes_once() -> None:
    with pytest.raises(UnsmoothError, match=r"Expected b once but got 'a\(b=1, b=2\)'\. Try one b=\."):
        reading("a(b=1, b=2)")
    with pytest.raises(UnsmoothError, match=r"Expected b once but got b=1 and b=2\. Try one b=\."):
        read_settings(["b=1", " b = 2"], "KEY=VALUE", "b=1")
    for wrong in ("b", "=1", " =1"):
        with pytest.raises(UnsmoothError, match="Expected KEY=VALUE but got"):
            read_settings([wrong], "KEY=VALUE", "b=1")


def test_several() -> None:
    found = read_sum("a + b(c=1e+5)+d", "names", "others")
    assert [str(one) for one in found] == ["a", "b(c=100000.0)", "d"]
    assert split_at_commas("a(b=[1,2]),c(d='e,f)'), ,g") == ("a(b=[1,2])", "c(d='e,f)')", "g")


def test_a_value_of_a_shell_has_lost_its_quotes() -> None:
    assert [read_value(text) for text in ("a b", "0,1", "1", "'1'", "x" * 100)] == ["a b", "0,1", 1, "1", "x" * 100]


def declared(
    *,
    flag: bool = False,
    count: Annotated[int, Range(1, 9)] = 2,
    share: Annotated[float, Range(0.0, 1.0, above=True)] = 0.5,
    scale: float | None = None,
    word: Literal["one", "two"] = "one",
    pair: tuple[int, int] | None = None,
    untold=3,
    anything=None,
) -> None:
    """Options of every kind."""


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"flag": True}, {"flag": True}),
        ({"count": numpy.int64(9)}, {"count": 9}),
        ({"share": 1}, {"share": 1.0}),
        ({"share": numpy.float32(0.5)}, {"share": 0.5}),
        ({"scale": None}, {"scale": None}),
        ({"word": "two"}, {"word": "two"}),
        ({"pair": [1, 2]}, {"pair": (1, 2)}),
        ({"anything": "x"}, {"anything": "x"}),
    ],
)
def test_options_are_taken_as_declared(given: dict[str, Any], taken: dict[str, Any]) -> None:
    found = checked("declared", options_of(declared), given)
    assert found == taken
    assert [type(value) for value in found.values()] == [type(value) for value in taken.values()]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("flag", 1, "flag as True or False but got 1. Try flag=False."),
        ("flag", numpy.True_, "flag as True or False"),
        ("count", True, "count as a whole number between 1 and 9 but got True. Try count=2."),
        ("count", 2.0, "count as a whole number between 1 and 9 but got 2.0"),
        ("count", 10, "count as a whole number between 1 and 9 but got 10"),
        ("share", 0.0, "share above 0.0 and up to 1.0 but got 0.0. Try share=0.5."),
        ("share", math.nan, "share above 0.0 and up to 1.0 but got nan"),
        ("scale", math.inf, "scale as a number, or None but got inf. Try leaving it out."),
        ("scale", 10**400, "scale as a number, or None but got 1000"),
        ("scale", True, "scale as a number, or None but got True"),
        ("word", "tow", "word as one of one, two but got 'tow'. Try word='two'."),
        ("word", 1, "word as one of one, two but got 1. Try word='one'."),
        ("word", ["one"], "word as one of one, two but got ['one']"),
        ("pair", [1], "pair as 2 whole numbers in brackets, or None but got [1]"),
        ("pair", "12", "pair as 2 whole numbers in brackets, or None but got '12'"),
        ("pair", (1, True), "pair as 2 whole numbers in brackets, or None but got (1, True)"),
        ("untold", "3", "untold as a whole number but got '3'. Try untold=3."),
        ("scale", torch.ones(100, 100), "scale as a number, or None but got tensor([[1., 1., 1., "),
        ("share", "x" * 200, f"share above 0.0 and up to 1.0 but got '{'x' * 79}…"),
        ("shares", 1, "a known option of declared but got 'shares'. Did you mean 'share'?"),
    ],
)
def test_options_that_are_not_as_declared(option: str, value: object, message: str) -> None:
    with pytest.raises(UnsmoothError) as told:
        checked("declared", options_of(declared), {option: value})
    assert str(told.value).startswith(f"Expected {message}")
    assert "\n" not in str(told.value)


def test_annotations_that_only_a_type_checker_knows_leave_the_defaults() -> None:
    def plugin(*, share: Nowhere = 0.5, many: int = 1) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert checked("plugin", options_of(plugin), {"share": 1}) == {"share": 1.0}
    with pytest.raises(UnsmoothError, match="share as a number"):
        checked("plugin", options_of(plugin), {"share": True})


# All that is registered: its name, its options, how its text is read, and how it is called with options from Python.


def _call_metric(name: str, **options: Any) -> object:
    return METRICS[name].function(*inputs_for(METRICS[name], lambda x: x).inputs, **options)


def _call_loss(name: str, **options: Any) -> object:
    x = torch.ones(2, 4, 3)
    beside = {"layers": {"first_BND": x}, "views": {"other_BND": x}}
    return LOSSES[name].function(x, **beside.get(LOSSES[name].reads, {}), **options)


def _call_remedy(name: str, **options: Any) -> object:
    return checked_options(REMEDIES[name], options)


Entry = tuple[str, Mapping[str, Option], Callable[[str], Mapping[str, Any]], Callable[..., object]]


def entries() -> Iterator[Entry]:
    for name, metric in METRICS.items():
        yield name, metric.options, lambda text: parse_metric(text).options, _call_metric
    for name, loss in LOSSES.items():
        yield name, loss.options, lambda text: parse_loss(text).options, _call_loss
    for name, kind in REMEDIES.items():
        yield name, options_of(kind.__init__), lambda text: parse_remedies(text)[0].options, _call_remedy
    for name in PRESETS:
        yield name, {}, lambda text: {} if find_preset(text) else {"none": None}, lambda name: find_preset(name)


ENTRIES = [pytest.param(*entry, id=f"{entry[3].__name__.strip('_<>')}-{entry[0]}") for entry in entries()]
OPTIONS = [
    pytest.param(*entry, option, id=f"{entry[3].__name__.strip('_<>')}-{entry[0]}-{option}")
    for entry in entries()
    for option in entry[1]
]


def wrong_for(default: object) -> list[Any]:
    """Values that no option with this default may be: of another kind, or no numbers."""
    wrong: list[Any] = ["no-such-word", [None], math.nan]
    if isinstance(default, bool):
        return [*wrong, None, 0, 1, 1.0, "no", "True"]
    if isinstance(default, int):
        return [*wrong, None, True, 1.5, "1"]
    if isinstance(default, float):
        return [*wrong, True, "1", math.inf]
    if isinstance(default, str):
        return [*wrong, None, True, 1, 0.5]
    return [*wrong, math.inf, "None"]


@pytest.mark.parametrize(("kind", "table"), [("metric", METRICS), ("remedy", REMEDIES), ("preset", PRESETS)])
def test_what_is_registered_is_known_by_its_file(kind: str, table: Mapping[str, object]) -> None:
    check_names(kind, table)
    check_names(kind, [" + ".join(table), "(unreadable", f"{next(iter(table))}(no_such_option=1)"])
    with pytest.raises(UnsmoothError, match=f"a known {kind} but got 'no_such_name'"):
        check_names(kind, ["no_such_name(a=1)"])


@pytest.mark.parametrize(("name", "options", "parse", "call"), ENTRIES)
def test_everything_is_read_with_its_defaults_spelled_out(name: str, options: Any, parse: Any, call: Any) -> None:
    defaults = {key: option.default for key, option in options.items()}
    text = str(Spec(name, defaults))
    assert dict(parse(text)) == defaults
    assert str(Spec(name, parse(text))) == text
    assert dict(parse(f" {name} ( ) ")) == {}
    with pytest.raises(UnsmoothError, match=r"no options of|a known option of"):
        parse(f"{name}(no_such_option=1)")


@pytest.mark.parametrize(("name", "options", "parse", "call", "option"), OPTIONS)
def test_options_of_another_kind_are_refused_in_one_line(
    name: str, options: Any, parse: Any, call: Any, option: str
) -> None:
    for wrong in wrong_for(options[option].default):
        for attempt in (lambda: parse(str(Spec(name, {option: wrong}))), lambda: call(name, **{option: wrong})):  # noqa: B023
            with pytest.raises(UnsmoothError, match=rf"^Expected {option} .* but got ") as told:
                attempt()
            assert "\n" not in str(told.value), wrong
    default = str(Spec(name, {option: options[option].default}))
    with pytest.raises(UnsmoothError, match=f"Expected {option} once"):
        parse(default.replace(")", f", {option}=1)") if "=(" not in default else f"{name}({option}=1, {option}=1)")
