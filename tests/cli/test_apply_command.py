"""`unsmooth apply`, `ls remedies` and `--with` as a user types them: output, files, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel

import unsmooth
from unsmooth.cli.app import run
from unsmooth.explaining.words import verdicts_hold

IDS = torch.tensor([[2, 5, 6, 7, 3], [2, 9, 8, 10, 3]])


@pytest.fixture
def page(tmp_path: Path, texts: list[str]) -> Path:
    path = tmp_path / "page.txt"
    path.write_text("\n\n".join(texts), encoding="utf-8")
    return path


def flat(text: str) -> str:
    return " ".join(text.split())


def said(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(IDS)[0]


# apply


def test_what_folds_becomes_plain_weights(
    bert_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["apply", "residual_scaling", str(bert_folder), "--out", str(out), "--set", "scale=0.5"]) == 0
    printed = capsys.readouterr()
    assert "residual_scaling(scale=0.5) in layers 0, 1, 2" in flat(printed.out)
    assert "Folded into plain weights" in printed.out
    assert str(out) in printed.out.replace("\n", "")
    assert printed.err == ""
    expected = said(unsmooth.apply(unsmooth.load(bert_folder), "residual_scaling", scale=0.5))
    torch.testing.assert_close(said(AutoModel.from_pretrained(out)), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(said(unsmooth.load(out)), expected, rtol=1e-5, atol=1e-5)
    assert not (out / "remedies.safetensors").exists()


def test_what_does_not_fold_is_kept_beside(
    bert_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["apply", "deescalate(learn=channel)", str(bert_folder), "--out", str(out), "--layers", "-0.5"]
    assert run([*words, "--set", "tau=0.25", "--set", "place=values"]) == 0
    printed = flat(capsys.readouterr().out)
    assert "in layers 1, 2" in printed
    assert "64 new parameters" in printed
    assert "Not folded: deescalate: what it does depends on the tokens" in printed
    loaded = unsmooth.load(out)
    (done,) = unsmooth.remedies.applied(loaded)
    assert (done.layers, done.options["tau"], done.options["place"]) == ((1, 2), 0.25, "values")
    there = unsmooth.apply(
        unsmooth.load(bert_folder), "deescalate", learn="channel", tau=0.25, place="values", layers=[1, 2]
    )
    assert torch.equal(said(loaded), said(there))
    assert torch.equal(said(AutoModel.from_pretrained(out)), said(there))
    assert "Saved with the weights, 64 new parameters: unsmooth.load has them" in printed


def test_the_folder_is_a_model_like_any_other(
    bert_folder: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, folds in (("deescalate", False), ("sharpen", True)):
        out = tmp_path / name
        assert run(["apply", name, str(bert_folder), "--out", str(out), "-q"]) == 0
        assert run(["scan", str(out), str(page), "--json", "-q"]) == 0
        printed = capsys.readouterr()
        content = json.loads(printed.out)
        assert [one["name"] for one in content["manifest"]["model"]["remedies"]] == ([] if folds else [name])
        assert content["notes"] == (["Folded into the weights: sharpen."] if folds else [])
        assert printed.err == ""


def test_no_fold_keeps_what_would_fold(bert_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    gram = "sharpen(basis=gram)"
    assert run(["apply", gram, str(bert_folder), "--out", str(out), "--no-fold", "--layers", "0,2"]) == 0
    assert "Saved with the weights, no new parameters" in capsys.readouterr().out
    assert [one.layers for one in unsmooth.remedies.applied(unsmooth.load(out))] == [(0, 2)]


def test_several_in_one_go(bert_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    text = "sharpen + residual_scaling(scale=0.5, layers=2)"
    assert run(["apply", text, str(bert_folder), "--out", str(out), "--layers", "1:", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["layers"]) for one in told["applied"]] == [("sharpen", [1, 2]), ("residual_scaling", [2])]
    assert told["folded"]
    # ‖H′ − H‖/‖H‖ of the projection, for each layer by itself.
    assert set(told["applied"][0]["report"]) == {"1", "2"}
    model = unsmooth.apply(unsmooth.load(bert_folder), "sharpen", layers=[1, 2])
    unsmooth.apply(model, "residual_scaling", scale=0.5, layers=[2])
    torch.testing.assert_close(said(AutoModel.from_pretrained(out)), said(model), rtol=1e-5, atol=1e-5)


def test_numbers_of_a_remedy_are_printed(bert_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["apply", "sharpen", str(bert_folder), "--out", str(tmp_path / "out")]) == 0
    model = unsmooth.apply(unsmooth.load(bert_folder), "sharpen")
    distances = [numbers["distance"] for numbers in unsmooth.remedies.applied(model)[0].report.values()]
    low, high, mean = min(distances), max(distances), sum(distances) / 3
    assert f"distance: {low:.4g} to {high:.4g}, mean {mean:.4g}" in capsys.readouterr().out


def test_a_seed_draws_the_same_again(bert_folder: Path, tmp_path: Path) -> None:
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        words = ["apply", "sharpen(start=fresh)", str(bert_folder), "--out", str(tmp_path / name), "-q", "--seed", seed]
        assert run(words) == 0
    first, second, third = (said(AutoModel.from_pretrained(tmp_path / name)) for name in "abc")
    assert torch.equal(first, second)
    assert not torch.allclose(first, third)


def test_force_replaces_only_our_own(bert_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(["apply", "deescalate", str(bert_folder), "--out", str(out), "-q"]) == 0
    again = ["apply", "residual_scaling", str(bert_folder), "--out", str(out), "-q"]
    assert run(again) == 2
    assert "--force" in capsys.readouterr().err
    assert unsmooth.remedies.applied(unsmooth.load(out))
    assert run([*again, "--force"]) == 0
    assert unsmooth.remedies.applied(unsmooth.load(out)) == []
    # Its own source is never written over, not even then.
    assert run(["apply", "deescalate", str(out), "--out", str(out), "-q", "--force"]) == 2
    assert "a folder beside the model" in capsys.readouterr().err


def one_line(text: str) -> str:
    """The error, having checked that it is a single line without a traceback."""
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["deescalat", "BERT"], "Did you mean 'deescalate'"),
        (["deescalate(ta=1)", "BERT"], "Did you mean 'tau'"),
        (["deescalate(", "BERT"], "remedies such as"),
        (["deescalate(tau=3)", "BERT"], "tau between 0.0 and 2.0 but got 3"),
        (["deescalate", "BERT", "--set", "tau=3"], "tau between 0.0 and 2.0 but got 3"),
        (["deescalate", "BERT", "--set", "tau=much"], "tau between 0.0 and 2.0 but got 'much'"),
        (["deescalate", "BERT", "--set", "place=valeus"], "Try place='values'"),
        (["deescalate", "BERT", "--set", "tau"], "key=value"),
        (["deescalate + smooth", "BERT", "--set", "tau=1"], "--set beside one remedy"),
        (["deescalate", "BERT", "--fold"], "remedies that fold into weights but got deescalate"),
        (["deescalate", "BERT", "--layers", "3"], "layers from 0 to 2"),
        (["deescalate", "BERT", "--layers", "4:8"], "at least one of 3 layers"),
        (["deescalate", "BERT", "--layers", "1.5"], "a fraction of depth"),
        (["deescalate", "BERT", "--layers", "some"], "layers as indices"),
        (["deescalate + deescalate", "BERT"], "layers without deescalate"),
        (["sharpen + smooth", "BERT"], "cannot be applied"),
        (["deescalate", "BERT", "--blocks", "nothing.*"], "modules that match"),
        (["deescalate", "BERT", "--blocks", "encoder.layer.*.output"], "blocks that remedies know how to change"),
        (["deescalate", "BERT", "--dtype", "float31"], "float31"),
        (["deescalate", "./no-such-folder"], "no-such-folder"),
        (["deescalate", "BERT", "--out", "TAKEN"], "a writable folder but got Not a directory"),
        (["deescalate", "BERT", "--out", "TAKEN/below"], "a writable folder but got Not a directory"),
        (["deescalate", "BERT", "--out", "FULL"], "a new or empty folder"),
        (["deescalate", "BERT", "--out", "FULL", "--force"], "a new or empty folder"),
        (["deescalate", "BERT", "--out", "BERT", "--force"], "a new or empty folder"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    words: list[str], message: str, bert_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*")), sorted(bert_folder.rglob("*"))
    places = {"BERT": bert_folder, "TAKEN": tmp_path / "taken", "FULL": tmp_path / "full"}
    places["TAKEN/below"] = tmp_path / "taken" / "below"
    given = [str(places.get(word, word)) for word in words]
    if "--out" not in given:
        given += ["--out", str(tmp_path / "new" / "out")]
    capsys.readouterr()
    assert run(["apply", *given]) == 2
    printed = capsys.readouterr()
    assert message in one_line(printed.err)
    assert printed.out == ""
    assert (sorted(tmp_path.rglob("*")), sorted(bert_folder.rglob("*"))) == before


def test_out_is_needed(bert_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["apply", "deescalate", str(bert_folder)]) == 2
    assert "--out" in capsys.readouterr().err


def test_help_needs_no_torch() -> None:
    program = "import sys; from unsmooth.cli.app import run; run(['apply', '--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "--no-fold" in done.stdout


# ls remedies


def test_ls_remedies(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert run(["ls", "remedies", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in entries] == unsmooth.remedies.names()
    assert run(["ls", "remedies"]) == 0
    shown = flat(capsys.readouterr().out)
    for entry in entries:
        for part in ("name", "summary", "equation", "paper", "cost"):
            assert flat(entry[part]) in shown
        for option in entry["options"]:
            assert f"{option['name']}={option['default']!r}" in shown
            assert flat(option["meaning"]) in shown


# A model that does not say what it takes


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model says what it takes."""
    monkeypatch.setattr("unsmooth.models.wire.run_standard", lambda model, blocks: None)


@pytest.mark.usefixtures("silent")
def test_data_show_what_such_a_model_takes(
    bert_folder: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, out = ["apply", "deescalate(tau=0.5)", str(bert_folder), "--out"], tmp_path / "out"
    assert run([*words, str(tmp_path / "refused")]) == 2
    assert "not called in a pass. Try unsmooth.apply(..., batch=...)" in flat(capsys.readouterr().err)
    assert run([*words, str(out), "--data", str(page)]) == 0
    plain, batch = unsmooth.load(bert_folder), {"input_ids": IDS}
    with pytest.raises(unsmooth.UnsmoothError, match=r"Try unsmooth\.remedies\.restore"):
        unsmooth.remedies.restore(plain, out)
    restored = unsmooth.remedies.restore(unsmooth.load(bert_folder), out, batch=batch)
    expected = said(unsmooth.apply(unsmooth.load(bert_folder), "deescalate", tau=0.5, batch=batch))
    torch.testing.assert_close(said(restored), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("silent")
def test_what_the_scan_before_has_shown_is_known_after(
    bert_folder: Path, page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["scan", str(bert_folder), str(page), "--json", "--with", "sharpen"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["with"]["sharpen"]["rows"] != content["before"]["rows"]


# scan --with


def test_scan_before_and_after(
    bert_folder: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("altair")
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "out"
    words = ["scan", str(bert_folder), str(page), "--with", "deescalate(tau=0.5)"]
    words += ["--with", "residual_scaling + deescalate"]
    assert run([*words, "--out", str(out), "--name", "tiny"]) == 0
    printed = capsys.readouterr()
    names = ["before", "with-deescalate-tau-0.5", "with-residual_scaling-deescalate"]
    assert sorted(path.name for path in out.iterdir()) == sorted([*names, "figures", "report.html"])
    before, one, two = (unsmooth.load_scan(out / name) for name in names)
    assert [scan.name for scan in (before, one, two)] == [
        "tiny",
        "tiny with deescalate(tau=0.5)",
        "tiny with residual_scaling + deescalate",
    ]
    assert [len(scan.manifest["model"]["remedies"]) for scan in (before, one, two)] == [0, 1, 2]
    for row, after, other in zip(before.curve(), one.curve(), two.curve(), strict=True):
        shown = [row.mean, after.mean, after.mean - row.mean, other.mean, other.mean - row.mean]
        texts = [f"{n:+.3f}" if i in (2, 4) else f"{n:.3f}" for i, n in enumerate(shown)]
        texts = ["0.000" if float(text) == 0 else text.replace("-", "−") for text in texts]
        cells = " │ ".join([f"{row.layer}", *texts])
        assert cells in flat(printed.out)
    for scan in (before, one, two):
        assert flat(scan.sentence) in flat(printed.out)
    html = (out / "report.html").read_text(encoding="utf-8")
    assert "tiny with deescalate(tau=0.5)" in html
    assert printed.err == ""
    # The plain model is as it was: what was applied went into copies.
    assert run(["scan", str(bert_folder), str(page), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == json.loads((out / "before" / "scan.json").read_text())["rows"]


def test_scan_json_has_both(bert_folder: Path, page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", str(bert_folder), str(page), "--json", "--baseline", "--with", "deescalate"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert set(content) == {"before", "with"}
    assert list(content["with"]) == ["deescalate"]
    after = content["with"]["deescalate"]
    assert after["manifest"]["data"] == content["before"]["manifest"]["data"]
    assert after["baseline"]["manifest"]["model"]["remedies"] == after["manifest"]["model"]["remedies"]


@pytest.mark.parametrize(("sign", "code"), [(">", 0), ("<", 1)])
def test_fail_if_is_about_the_model_with_the_remedy(
    bert_folder: Path, page: Path, capsys: pytest.CaptureFixture[str], sign: str, code: int
) -> None:
    """The plain model ends far above the limit, the one with its token means taken out far below."""
    words = ["scan", str(bert_folder), str(page), "-q", "--fail-if", f"mean_cosine@last{sign}0.6"]
    assert run(words) == 1 - code
    capsys.readouterr()
    assert run([*words, "--with", "deescalate"]) == code
    assert ("holds with deescalate" in capsys.readouterr().err) == bool(code)


def test_ctrl_c_after_the_first_scan_saves_it(
    bert_folder: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from unsmooth.scanning import one_pass

    read, calls = one_pass.own_batches, []

    def interrupted_in_the_second(*given):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return read(*given)

    monkeypatch.setattr(one_pass, "own_batches", interrupted_in_the_second)
    words = ["scan", str(bert_folder), str(page), "--with", "deescalate", "--out", str(tmp_path / "out"), "--quiet"]
    assert run(words) == 130
    assert "what is done is saved" in one_line(capsys.readouterr().err)
    assert unsmooth.load_scan(tmp_path / "out" / "before").complete


# explain --with


def test_explain_before_and_after(
    bert_folder: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("altair")
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "out"
    words = ["explain", str(bert_folder), str(page), "--no-jacobian", "--with", "sharpen", "--out", str(out)]
    assert run(words) == 0
    printed = capsys.readouterr()
    assert {"before", "with-sharpen", "report.html"} <= {path.name for path in out.iterdir()}
    before, after = (unsmooth.load_explanation(out / name) for name in ("before", "with-sharpen"))
    assert after.name == f"{before.name} with sharpen"
    assert after.manifest["model"]["remedies"][0]["name"] == "sharpen"
    for explanation in (before, after):
        assert flat(explanation.sentence) in flat(printed.out)
    for one, other in zip(before.layers, after.layers, strict=True):
        row = next(line for line in printed.out.splitlines() if line.startswith(f"│     {one.layer} │"))
        shown = [of.verdict if verdicts_hold(whose.skills) else "–" for of, whose in ((one, before), (other, after))]
        assert [cell.strip() for cell in row.split("│")][2::3][:2] == shown
    assert printed.err == ""


def test_explain_json_has_both(bert_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(bert_folder), "--json", "--with", "residual_scaling(scale=0.5)"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert list(content["with"]) == ["residual_scaling(scale=0.5)"]
    assert len(content["before"]["layers"]) == len(content["with"]["residual_scaling(scale=0.5)"]["layers"]) == 3


@pytest.mark.parametrize("verb", ["scan", "explain"])
@pytest.mark.parametrize(
    ("remedy", "message"),
    [
        ("deescalat", "Did you mean 'deescalate'"),
        ("deescalate(tau=9)", "tau between 0.0 and 2.0"),
        ("deescalate(layers=9)", "layers from 0 to 2"),
        ("deescalate + deescalate", "layers without deescalate"),
    ],
)
def test_a_remedy_that_cannot_be_is_refused_before_anything_is_measured(
    verb: str,
    remedy: str,
    message: str,
    bert_folder: Path,
    page: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*given: object, **options: object) -> None:
        pytest.fail("measured")

    monkeypatch.setattr(f"unsmooth.{'scanning' if verb == 'scan' else 'explaining'}.{verb}", never)
    assert run([verb, str(bert_folder), str(page), "--with", "residual_scaling", "--with", remedy]) == 2
    printed = capsys.readouterr()
    assert message in one_line(printed.err)
    assert printed.out == ""
