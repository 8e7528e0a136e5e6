"""The one kind of error that users see: what was expected, what came, what to try."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Characters of what came that an error repeats: it may come from a stranger's file.
_LONGEST, _LONGEST_NAME = 1_000, 80


class UnsmoothError(ValueError):
    """A mistake in what was asked for or handed in, told in one line.

    The command line prints the message without a traceback; Python users may catch it as a ``ValueError``.
    """


def expected(what: str, got: object, hint: str) -> UnsmoothError:
    """Build the house error.

    >>> str(expected("a 3-D tensor", "a 2-D one", "x.unsqueeze(0)"))
    'Expected a 3-D tensor but got a 2-D one. Try x.unsqueeze(0).'
    """
    return UnsmoothError(f"Expected {what} but got {_cut(str(got), _LONGEST)}. Try {hint}.")


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnsmoothError:
    """Build the error for a name that is not registered, with the nearest names that are.

    >>> str(unknown_name("metric", "mean_cosin", ["mean_cosine", "hfc_lfc"]))
    "Expected a known metric but got 'mean_cosin'. Did you mean 'mean_cosine'? Known: hfc_lfc, mean_cosine."
    >>> str(unknown_name("model", "antibert", ["AntiBERTy"]))
    "Expected a known model but got 'antibert'. Did you mean 'AntiBERTy'? Known: AntiBERTy."
    """
    names = sorted(known)
    by_lower = {known_name.lower(): known_name for known_name in names}
    near = difflib.get_close_matches(str(name)[:_LONGEST_NAME].lower(), by_lower, n=1, cutoff=0.5)
    guess = f" Did you mean {by_lower[near[0]]!r}?" if near else ""
    got = _cut(repr(name), _LONGEST_NAME)
    return UnsmoothError(f"Expected a known {kind} but got {got}.{guess} Known: {', '.join(names)}.")


def _cut(text: str, most: int) -> str:
    line = " ".join(text[: most + 1].splitlines())
    return line if len(text) <= most else f"{line[:most]}…"
