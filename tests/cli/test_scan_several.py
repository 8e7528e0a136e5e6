"""Several models side by side, and the demo models, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import unsmooth
from unsmooth.cli.app import run
from unsmooth.cli.words import Asked, read_words
from unsmooth.explaining.words import verdicts_hold
from unsmooth.models import demo

DEMO = [f"demo:{name}" for name in demo.NAMES]
Capture = pytest.CaptureFixture[str]


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_whole_story_in_one_command(standins: Path, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("altair")
    out = tmp_path / "out"
    assert run(["scan", *DEMO, "--explain", "--max-batches", "2", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    folders = ["demo-plain", "demo-sharpen", "demo-smooth"]
    assert sorted(path.name for path in out.iterdir()) == [*folders, "figures", "report.html"]
    page = (out / "report.html").read_text(encoding="utf-8")
    for name, folder in zip(DEMO, folders, strict=True):
        scan, why = unsmooth.load_scan(out / folder), unsmooth.load_explanation(out / folder / "why")
        assert (scan.name, why.name) == (name, name)
        assert scan.manifest["data"]["sequences"] == 32
        assert why.manifest["data"]["sequences"] == 8
        assert flat(scan.sentence) in flat(printed.out)
        assert flat(why.sentence) in flat(printed.out)
        assert flat(scan.notes[0]) in flat(printed.out)
        assert f"{name}: {name}" not in flat(printed.out)
        assert name in page
    assert printed.out.count(str(out / "report.html")) == 1
    assert len(page.encode()) < 2_500_000


def test_curves_and_verdicts_stand_side_by_side(
    standins: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ["scan", *DEMO, "--explain", "--max-batches", "1"]
    assert run([*words, "--out", str(tmp_path)]) == 0
    shown = flat(capsys.readouterr().out.replace("│", " "))
    folders = [tmp_path / name.replace(":", "-") for name in DEMO]
    curves = [unsmooth.load_scan(folder).curve() for folder in folders]
    for rows in zip(*curves, strict=True):
        cells = [f"{row.mean:.3f} ±{(row.ci_high - row.ci_low) / 2:.3f}" for row in rows]
        assert f"{rows[0].layer} {' '.join(cells)}" in shown
    whys = [unsmooth.load_explanation(folder / "why") for folder in folders]
    largest = max(abs(layer.logit_change) for why in whys for layer in why.layers)
    decimals = 3 if largest >= 0.1 else 4 if largest >= 0.01 else 5
    for layers in zip(*(why.layers for why in whys), strict=True):
        cells = [
            f"{layer.verdict if verdicts_hold(why.skills) else '–'} {layer.logit_change:+.{decimals}f}"
            for layer, why in zip(layers, whys, strict=True)
        ]
        cells = [cell.replace("-", "−") for cell in cells]
        assert f"{layers[0].layer} {' '.join(cells)}" in shown


def test_json_has_every_model(standins: Path, capsys: Capture) -> None:
    assert run(["scan", *DEMO[:2], "--explain", "--max-batches", "1", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert list(models) == DEMO[:2]
    for name, one in models.items():
        assert set(one) == {"scan", "explanation"}
        assert one["scan"]["name"] == one["explanation"]["name"] == name


@pytest.mark.parametrize("verb", ["scan", "explain"])
def test_without_words_the_demo_models_are_shown_their_images(verb: str, standins: Path, capsys: Capture) -> None:
    options = {"scan": [], "explain": ["--no-jacobian"]}[verb]
    assert run([verb, "--json", "--max-batches", "1", *options]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert list(models) == DEMO
    for one in models.values():
        assert one["manifest"]["data"]["sequences"] == (16 if verb == "scan" else 4)


def test_one_demo_model_is_shown_its_images(standins: Path, capsys: Capture) -> None:
    assert run(["scan", "demo:plain", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["manifest"]["data"]["sequences"] == 300
    assert content["manifest"]["model"]["id"] == "demo:plain"
    assert run(["explain", "demo:plain", "--json", "--no-jacobian"]) == 0
    assert json.loads(capsys.readouterr().out)["manifest"]["data"]["sequences"] == 32


def test_named_data_goes_before_the_images(standins: Path, tmp_path: Path, capsys: Capture) -> None:
    from PIL import Image

    for number in range(3):
        Image.fromarray(demo.images(3)[0][number].permute(1, 2, 0).numpy()).save(tmp_path / f"{number}.png")
    assert run(["scan", "demo:plain", "demo:smooth", str(tmp_path), "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert [one["manifest"]["data"]["sequences"] for one in models.values()] == [3, 3]


def test_folders_stand_beside_each_other(
    demo_runs: Path, standins: Path, bert_folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Of different depths, each with its own data; a model of transformers among them is shown the page."""
    final = str(demo_runs / "plain" / "seed-0" / "final")
    assert read_words(["demo:plain", final, str(bert_folder), "x y"]) == Asked(
        ("demo:plain", final, str(bert_folder)), "x y"
    )
    words = ["explain", "demo:plain", str(bert_folder), "--out", str(tmp_path / "out"), "--no-jacobian"]
    assert run([*words, "--max-batches", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "(weights only)" in flat(printed.out)
    assert (tmp_path / "out" / "demo-plain" / "explanation.json").is_file()


def test_fail_if_is_about_every_model(standins: Path, capsys: Capture) -> None:
    words = ["scan", *DEMO[:2], "-q", "--max-batches", "1", "--fail-if"]
    assert run([*words, "mean_cosine@last>-1"]) == 1
    told = capsys.readouterr().err
    assert "holds for demo:plain" in told
    assert "holds for demo:sharpen" in told
    assert run([*words, "mean_cosine@last>1"]) == 0


def test_one_model_is_explained_beside_its_scan(bert_folder: Path, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("altair")
    out = tmp_path / "out"
    assert run(["scan", str(bert_folder), "the cat sat on a mat", "--explain", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert flat(unsmooth.load_scan(out).sentence) in flat(printed.out)
    assert flat(unsmooth.load_explanation(out / "why").sentence) in flat(printed.out)
    assert printed.out.replace("\n", "").count(str(out / "report.html")) == 1


def test_ctrl_c_in_the_second_model_saves_the_first(
    standins: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unsmooth.scanning import one_pass

    read, calls = one_pass.own_batches, []

    def interrupted_in_the_second(*given):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return read(*given)

    monkeypatch.setattr(one_pass, "own_batches", interrupted_in_the_second)
    assert run(["scan", *DEMO, "--out", str(tmp_path / "out"), "--quiet"]) == 130
    assert "what is done is saved" in capsys.readouterr().err
    assert unsmooth.load_scan(tmp_path / "out" / "demo-plain").complete
    assert not (tmp_path / "out" / "demo-sharpen").exists()


@pytest.mark.parametrize("verb", ["scan", "explain"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo:plain", "demo:smoth"], "Did you mean 'demo:smooth'"),
        (["demo:plain", "demo:plain"], "models that differ"),
        (["demo:plain", "a.txt", "b.txt"], "then one file, folder or text but got 'a.txt' and 'b.txt'"),
        (["demo:plain", "demo:smooth", "--name", "both"], "one model beside --name but got 2 models"),
        (["demo:plain", "demo:smooth", "--with", "deescalate"], "one model beside --with"),
    ],
)
def test_bad_words_are_told_before_anything_is_loaded(
    verb: str, words: list[str], message: str, standins: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unsmooth.models.load", lambda *given, **options: pytest.fail("loaded"))
    assert run([verb, *words]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.strip().splitlines()) == 1


def test_words_without_demo_models_in_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "HOME", tmp_path)
    assert read_words(None) == Asked(("all-MiniLM-L6-v2",), None)
    assert read_words(["gpt2", "x" * 5000]) == Asked(("gpt2",), "x" * 5000)
