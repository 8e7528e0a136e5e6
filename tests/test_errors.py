"""Errors: one line of a bounded length, whatever came."""

from __future__ import annotations

from unsmooth.errors import expected, unknown_name


def test_what_came_cannot_make_an_error_long_or_of_several_lines() -> None:
    assert str(expected("a number", "one\ntwo\r\nthree", "3")) == "Expected a number but got one two three. Try 3."
    assert len(str(expected("a number", "9" * 10**6, "3"))) < 1_100
    assert len(str(unknown_name("metric", "a" * 10**6, ["mean_cosine"]))) < 200


def test_short_words_stay_as_they_came() -> None:
    assert str(expected("a number", "a word", "3")) == "Expected a number but got a word. Try 3."
