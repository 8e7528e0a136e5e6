"""Names with options, ``name(option=value, …)``: one grammar for metrics, losses, remedies, presets and models of timm.

::

    sum    = call {"+" call}
    call   = name ["(" [option {"," option}] ")"]
    option = name "=" value
    value  = number | True | False | None | word | 'text' | "[" [value {"," value}] "]" | "(" [value {"," value}] ")"

Nothing is evaluated. What an option may be is declared once, where the function that has it takes it: its kind by its
annotation, or by its default where there is none, its range by `Range`. Plain Python, without torch.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import re
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from unsmooth.errors import UnsmoothError, expected, unknown_name

LONGEST = 4096
"""Characters of a text that is read; more are refused unread."""
_DEEPEST = 4
"""Brackets in brackets of a value."""

_NAME = re.compile(r"\s*([^\W\d][\w.]*)")
_QUOTED = re.compile(r"""\s*('(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")""")
_WORD = re.compile(r"\s*([-+]?[\w.]+(?:[:/.\w]|(?<=[eE])[-+](?=\d)|-)*|:[\w:.-]*)")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:_\d+)*(?P<fraction>\.\d*)?|(?P<bare>\.\d+))(?P<exponent>[eE][-+]?\d+)?")
_CONSTANTS: Mapping[str, bool | None] = {"True": True, "False": False, "None": None}


@dataclass(frozen=True)
class Spec:
    """A name with options.

    >>> str(Spec("mean_cosine", {"with_self": True, "absolute": False}))
    'mean_cosine(absolute=False, with_self=True)'
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        inside = write_options(self.options)
        return f"{self.name}({inside})" if inside else self.name


def write_options(options: Mapping[str, Any]) -> str:
    """Options as they are read, in the one order in which they are written."""
    return ", ".join(f"{name}={value!r}" for name, value in sorted(options.items()))


def read(text: str, form: str, hint: str) -> Spec:
    """Read ``name`` or ``name(option=value, …)``.

    Args:
        text: Words in it need no quotes.
        form: What is expected, with an example, for the error.
        hint: What to try.

    >>> read("dispersion(weight=.5, form=cosine)", "a loss", "`unsmooth ls losses`")
    Spec(name='dispersion', options={'weight': 0.5, 'form': 'cosine'})
    """
    [found] = _whole(text, form, hint, lambda reader: [reader.call()])
    return found


def read_sum(text: str, form: str, hint: str) -> list[Spec]:
    """Read several, joined by +."""
    return _whole(text, form, hint, _Reader.calls)


def read_leading(text: str, form: str, hint: str) -> tuple[Spec, str]:
    """Read one at the beginning of a text, and what follows it.

    >>> read_leading("mean_cosine(absolute=True)@last > 0.9", "a condition", "mean_cosine@last>0.9")
    (Spec(name='mean_cosine', options={'absolute': True}), '@last > 0.9')
    """
    reader = _reader(text, form, hint)
    try:
        return reader.call(), text[reader.at :]
    except _UnreadableError:
        raise expected(form, shown(text), hint) from None


def read_value(text: str) -> Any:
    """A value as options have it; any other text is itself, as a shell has taken its quotes.

    >>> read_value("0.5"), read_value("None"), read_value("[1, 2]"), read_value("0,1,5")
    (0.5, None, [1, 2], '0,1,5')
    """
    try:
        reader = _reader(text, "a value", "a shorter one")
        value = reader.value()
        reader.end()
        return value
    except _UnreadableError:
        return text


def read_settings(texts: Sequence[str], form: str, hint: str) -> dict[str, str]:
    """``KEY=VALUE`` texts, each key once.

    >>> read_settings(["tau=0.5", "place = values"], "--set KEY=VALUE", "--set tau=0.5")
    {'tau': '0.5', 'place': 'values'}
    """
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise expected(form, shown(text), hint)
        if key in found:
            raise expected(f"{key} once", f"{key}={found[key]} and {key}={value}", f"one {key}=")
        found[key] = value
    return found


def split_at_commas(text: str) -> tuple[str, ...]:
    """What stands between commas; those in brackets and quotes are part of it.

    >>> split_at_commas("cosine(weight=0.1, layer=-1), dispersion")
    ('cosine(weight=0.1, layer=-1)', 'dispersion')
    """
    found, depth, quote = [""], 0, ""
    for letter in text:
        if quote or letter in "'\"":
            quote = quote if quote and letter != quote else "" if quote else letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0 and not quote:
            found.append("")
        else:
            found[-1] += letter
    return tuple(part for one in found if (part := one.strip()))


def shown(value: object) -> str:
    """A value in an error: in one line, and not all of it where it is long."""
    text = " ".join((repr(value[:80]) if isinstance(value, str) else repr(value)).split())
    return f"{text[:80]}…" if len(text) > 82 or (isinstance(value, str) and len(value) > 80) else text


class _UnreadableError(ValueError):
    """A text that the grammar does not have."""


class _Reader:
    """A text, and how far it is read."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def calls(self) -> list[Spec]:
        found = [self.call()]
        while self._mark("+"):
            found.append(self.call())
        return found

    def call(self) -> Spec:
        name, options = self._name(), dict[str, Any]()
        closed = not self._mark("(") or self._mark(")")
        while not closed:
            option = self._name()
            if option in options:
                raise expected(f"{option} once", shown(self.text), f"one {option}=")
            self._needed("=")
            options[option] = self.value()
            closed = self._comma_or_end(")")
        return Spec(name, options)

    def value(self, depth: int = 0) -> Any:
        for opening, closing in ("[]", "()"):
            if self._mark(opening):
                return self._values(closing, depth + 1)
        if (quoted := self._match(_QUOTED)) is not None:
            return _unquoted(quoted)
        word = self._match(_WORD)
        if word is None:
            raise _UnreadableError
        number = _NUMBER.fullmatch(word)
        if number is None:
            return _CONSTANTS.get(word, word)
        return float(word) if any(number.groupdict().values()) else int(word)

    def end(self) -> None:
        if self.text[self.at :].strip():
            raise _UnreadableError

    def _values(self, closing: str, depth: int) -> Any:
        if depth > _DEEPEST:
            raise _UnreadableError
        found: list[Any] = []
        comma, closed = False, self._mark(closing)
        while not closed:
            found.append(self.value(depth))
            comma = self.text[self.at :].lstrip().startswith(",")
            closed = self._comma_or_end(closing)
        if closing == "]":
            return found
        return tuple(found) if len(found) != 1 or comma else found[0]

    def _comma_or_end(self, closing: str) -> bool:
        """Whether the closing bracket follows; one comma may stand in front of it."""
        if self._mark(","):
            return self._mark(closing)
        self._needed(closing)
        return True

    def _name(self) -> str:
        found = self._match(_NAME)
        if found is None:
            raise _UnreadableError
        return found

    def _needed(self, mark: str) -> None:
        if not self._mark(mark):
            raise _UnreadableError

    def _mark(self, mark: str) -> bool:
        return self._match(re.compile(rf"\s*({re.escape(mark)})")) is not None

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found[1]


def _reader(text: str, form: str, hint: str) -> _Reader:
    if not isinstance(text, str):
        raise expected(form, shown(text), hint)
    if len(text) > LONGEST:
        raise expected(f"{form}, in up to {LONGEST:,} characters", f"{len(text):,}", hint)
    return _Reader(text)


def _whole(text: str, form: str, hint: str, how: Callable[[_Reader], list[Spec]]) -> list[Spec]:
    reader = _reader(text, form, hint)
    try:
        found = how(reader)
        reader.end()
        return found
    except _UnreadableError:
        raise expected(form, shown(text), hint) from None


def _unquoted(text: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a backslash that means nothing
            return str(ast.literal_eval(text))
    except (SyntaxError, ValueError, Warning):
        raise _UnreadableError from None


@dataclass(frozen=True)
class Range:
    """The numbers that an option may be, as ``scale: Annotated[float, Range(0.0, 2.0)] = 1.0``.

    Args:
        low: The least.
        high: The largest.
        above: Whether `low` itself is left out.
        below: Whether `high` itself is left out.

    >>> print(Range(0.0, 2.0), Range(0.0, above=True), Range(0.0, 1.0, below=True), Range(1), sep="; ")
    between 0.0 and 2.0; above 0.0; of at least 0.0 and below 1.0; of at least 1
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __str__(self) -> str:
        if math.isfinite(self.low) and math.isfinite(self.high) and not (self.above or self.below):
            return f"between {self.low} and {self.high}"
        ends = [(self.low, "above" if self.above else "of at least"), (self.high, "below" if self.below else "up to")]
        return " and ".join(f"{word} {end}" for end, word in ends if math.isfinite(end))

    def holds(self, value: Any) -> bool:
        """Whether a number is one of them."""
        least = self.low < value if self.above else self.low <= value
        return bool(least and (value < self.high if self.below else value <= self.high))


_UNFIT: Any = object()


@dataclass(frozen=True)
class _Kind:
    """What an option may be: from a value to the value, as it is declared, or to `_UNFIT`; and in words."""

    take: Callable[[Any], Any]
    words: str
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Option:
    """One option: its default, and what it may be."""

    name: str
    default: Any
    kind: _Kind = field(repr=False)

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty

    def check(self, value: Any) -> Any:
        """The value, a whole number made a float where one is declared.

        >>> Option.of("tau", 1.0, Annotated[float, Range(0.0, 2.0)]).check(2)
        2.0
        """
        taken = self.kind.take(value)
        if taken is _UNFIT:
            raise expected(f"{self.name} {self.kind.words}", shown(value), self._hint(value))
        return taken

    @classmethod
    def of(cls, name: str, default: Any, hint: Any) -> Option:
        """An option by its annotation; without one, by its default, where that says something of its kind."""
        if hint is inspect.Parameter.empty:
            hint = Any if default is None or default is inspect.Parameter.empty else type(default)
        return cls(name, default, _kind_of(hint))

    def _hint(self, value: Any) -> str:
        words = [str(choice) for choice in self.kind.choices]
        near = difflib.get_close_matches(value[:80], words, n=1, cutoff=0.5) if isinstance(value, str) else []
        if near:
            return f"{self.name}={near[0]!r}"
        if self.required or self.default is None:
            return f"{self.name}={words[0]!r}" if words else "leaving it out"
        return f"{self.name}={self.default!r}"


def _kind_of(hint: Any) -> _Kind:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _within(_kind_of(inner[0]), [mark for mark in inner[1:] if isinstance(mark, Range)])
    if origin in (Union, types.UnionType):
        return _any_of([_kind_of(one) for one in inner])
    if origin is Literal:
        words = f"as one of {', '.join(map(str, inner))}"
        return _Kind(
            lambda value: value if type(value) in map(type, inner) and value in inner else _UNFIT, words, inner
        )
    if hint in _PLAIN:
        return _PLAIN[hint]
    container = origin if isinstance(origin, type) else hint
    if container in (list, tuple, Sequence):
        return _row_of(container, inner)
    if isinstance(container, type):
        called = "list" if container is Sequence else container.__name__
        return _Kind(lambda value: value if isinstance(value, container) else _UNFIT, f"as a {called}")
    return _PLAIN[Any]


def _whole_number(value: Any) -> Any:
    return _UNFIT if type(value) is bool or not isinstance(value, Integral) else int(value)


def _number(value: Any) -> Any:
    if type(value) is bool or not isinstance(value, Real):
        return _UNFIT
    try:
        return number if math.isfinite(number := float(value)) else _UNFIT
    except OverflowError:
        return _UNFIT


_PLAIN: Mapping[Any, _Kind] = {
    bool: _Kind(lambda value: value if isinstance(value, bool) else _UNFIT, "as True or False"),
    int: _Kind(_whole_number, "as a whole number"),
    float: _Kind(_number, "as a number"),
    str: _Kind(lambda value: value if isinstance(value, str) else _UNFIT, "as a word"),
    type(None): _Kind(lambda value: value if value is None else _UNFIT, "None"),
    Any: _Kind(lambda value: value, "of any kind"),
}


def _within(kind: _Kind, ranges: Sequence[Range]) -> _Kind:
    def take(value: Any) -> Any:
        taken = kind.take(value)
        return taken if taken is not _UNFIT and all(one.holds(taken) for one in ranges) else _UNFIT

    words = " ".join(map(str, ranges))
    return _Kind(take, words if kind is _PLAIN[float] and words else f"{kind.words} {words}".strip(), kind.choices)


def _any_of(kinds: Sequence[_Kind]) -> _Kind:
    def take(value: Any) -> Any:
        return next((taken for kind in kinds if (taken := kind.take(value)) is not _UNFIT), _UNFIT)

    first, *rest = (kind.words for kind in kinds)
    words = ", ".join([first, *(word.removeprefix("as ") for word in rest[:-1])]) + f", or {rest[-1]}"
    return _Kind(take, words, tuple(choice for kind in kinds for choice in kind.choices))


def _row_of(container: Any, inner: tuple[Any, ...]) -> _Kind:
    each = _kind_of(inner[0]) if inner else _PLAIN[Any]
    count = len(inner) if container is tuple and inner and inner[-1] is not Ellipsis else None

    def take(value: Any) -> Any:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes) or count not in (None, len(value)):
            return _UNFIT
        taken = [each.take(one) for one in value]
        return _UNFIT if any(one is _UNFIT for one in taken) else tuple(taken) if container is tuple else taken

    of = f"{each.words.removeprefix('as a ')}s" if each.words.startswith("as a ") else each.words.removeprefix("as ")
    return _Kind(take, f"as a list of {of}" if count is None else f"as {count} {of} in brackets")


@cache
def options_of(function: Callable[..., Any]) -> Mapping[str, Option]:
    """The options of a function, its keyword-only arguments, by what it declares of them.

    >>> def remedy(*, tau: Annotated[float, Range(0.0, 2.0)] = 1.0, learn: Literal["no", "layer"] = "no") -> None: ...
    >>> checked("remedy", options_of(remedy), {"tau": 1, "learn": "layer"})
    {'tau': 1.0, 'learn': 'layer'}
    >>> checked("remedy", options_of(remedy), {"tau": 3})
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected tau between 0.0 and 2.0 but got 3. Try tau=1.0.
    """
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:  # names that only a type checker imports: the defaults must do
        signature = inspect.signature(function)
        known = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
        signature = signature.replace(parameters=known)
    return {
        name: Option.of(name, one.default, one.annotation)
        for name, one in signature.parameters.items()
        if one.kind is one.KEYWORD_ONLY
    }


def checked(owner: str, options: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Given options as they are declared; one that is unknown, or of another kind or range, is refused.

    Args:
        owner: Whose they are, for the error.
        options: Those that it has.
        given: Name to value.
    """
    for name in given:
        if name not in options:
            raise _unknown(owner, name, options)
    return {name: options[name].check(value) for name, value in given.items()}


def _unknown(owner: str, name: str, options: Mapping[str, Option]) -> UnsmoothError:
    if not options:
        return expected(f"no options of {owner}, which has none", shown(name), owner)
    return unknown_name(f"option of {owner}", name, options)
