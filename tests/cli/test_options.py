"""Options that several verbs share: each verb has them all, and they arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import unsmooth.explaining
import unsmooth.models
import unsmooth.report.redraw
import unsmooth.scanning
from unsmooth.cli.app import run
from unsmooth.cli.options import AS_STORED

LOADING = {"revision": "v1", "dtype": "float64", "offline": True, "trust_remote_code": True, "allow_pickle": True}
WORDS = ["--revision", "v1", "--dtype", "float64", "--offline", "--trust-remote-code", "--allow-pickle"]


class Reached(Exception):  # noqa: N818 - no error: the place that a test wants to see
    """Carries what a verb handed over."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__("reached")
        self.given, self.options = given, options


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command up to a function; returns what that was called with."""

    def until(room: Any, name: str, words: list[str]) -> Reached:
        seen: list[Reached] = []

        def stop(*given: Any, **options: Any) -> None:
            seen.append(Reached(*given, **options))
            raise seen[-1]

        monkeypatch.setattr(room, name, stop)
        assert run(words) == 2
        return seen[0]

    return until


@pytest.mark.parametrize("verb", ["scan", "explain", "apply deescalate", "presets", "redraw cosine"])
def test_every_verb_opens_a_model_as_asked(verb: str, tmp_path: Path, reach: Any) -> None:
    words = [*verb.split(), "some/model", "--out", str(tmp_path / "out")]
    assert reach(unsmooth.models, "load", [*words, *WORDS]).options == LOADING
    plain = reach(unsmooth.models, "load", words)
    assert plain.given == ("some/model",)
    assert plain.options == vars(AS_STORED)


@pytest.mark.parametrize(
    ("verb", "room", "name", "few"),
    [
        ("scan", unsmooth.scanning, "scan", (None, 16, None)),
        ("explain", unsmooth.explaining, "explain", (8, 4, 128)),
        ("presets", unsmooth.scanning, "compare_presets", (None, 16, None)),
        ("redraw cosine", unsmooth.report.redraw, "redraw", (None, 16, None)),
    ],
)
def test_every_verb_shows_data_as_asked(
    verb: str,
    room: Any,
    name: str,
    few: tuple[Any, ...],
    bert_folder: Path,
    tmp_path: Path,
    reach: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [*verb.split(), str(bert_folder), "--out", str(tmp_path / "out")]
    asked = ["--max-batches", "3", "--batch-size", "5", "--max-length", "7", "--device", "cpu", "--blocks", "a.*"]
    found = reach(room, name, [*words, *asked]).options
    names = ("max_batches", "batch_size", "max_length")
    assert [found[key] for key in (*names, "device", "blocks")] == [3, 5, 7, "cpu", "a.*"]
    # Without a device all of them take the first GPU.
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    found = reach(room, name, words).options
    assert tuple(found[key] for key in names) == few
    assert (found["device"], found["blocks"]) == ("cuda:0", None)


def test_every_site_is_asked_for_by_one_word(bert_folder: Path, texts: list[str]) -> None:
    model = unsmooth.load(bert_folder)
    options: Any = {"metrics": ["mean_cosine"], "progress": False}
    every = unsmooth.scan(model, texts, sites="all", **options)
    [stack] = unsmooth.models.find_stacks(model)
    assert set(every.sites) == set(stack.sites) == {"residual", "normed", "attention", "mid", "mlp"}
    assert every.rows == unsmooth.scan(model, texts, sites=stack.sites, **options).rows
