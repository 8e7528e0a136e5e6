"""`unsmooth explain` as a user types it: output, files, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import unsmooth
from unsmooth.cli.app import run


@pytest.fixture
def page(tmp_path: Path, texts: list[str]) -> Path:
    path = tmp_path / "page.txt"
    path.write_text("\n\n".join(texts), encoding="utf-8")
    return path


def flat(text: str) -> str:
    return " ".join(text.split())


def test_weights_alone(bert_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(bert_folder)]) == 0
    printed = capsys.readouterr()
    assert "of 3 layers taken alone" in flat(printed.out)
    assert "(weights only)" in flat(printed.out)
    assert "--out DIR" in printed.out
    assert printed.err == ""


def test_with_data(
    bert_folder: Path, page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["explain", str(bert_folder), str(page), "--max-batches", "1"]) == 0
    printed = capsys.readouterr()
    shown = flat(printed.out)
    assert "measured, t_sim rises over" in shown
    for name in ("T0", "T1", "T2", "T3", "T4", "persistence", "verdicts"):
        assert name in shown
    assert "Through 3 layers" in shown
    assert printed.err == ""


def test_the_bundled_page_is_data(bert_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", str(bert_folder), "page", "--max-batches", "1", "--max-length", "12", "--no-jacobian", "--json"]
    assert run(words) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["manifest"]["data"]["sequences"] == 4
    assert content["manifest"]["data"]["tokens"] <= 4 * 12
    assert content["growth"] is None
    assert all(layer["gains"] is None for layer in content["layers"])


def test_out_writes_every_file(
    bert_folder: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("altair")
    out = tmp_path / "new" / "out"
    assert run(["explain", str(bert_folder), str(page), "--out", str(out), "--name", "<b>tiny</b>"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert str(out / "report.html") in printed.out.replace("\n", "")
    names = {path.name for path in out.iterdir()}
    assert {"explanation.json", "layers.csv", "heads.csv", "manifest.json", "report.html"} <= names
    assert names <= {"explanation.json", "layers.csv", "heads.csv", "manifest.json", "report.html", "figures"}
    saved = unsmooth.load_explanation(out)
    assert saved.name == "<b>tiny</b>"
    assert len(saved.layers) == 3
    assert len((out / "layers.csv").read_text(encoding="utf-8").splitlines()) == 4
    assert len((out / "heads.csv").read_text(encoding="utf-8").splitlines()) == 13
    html = (out / "report.html").read_text(encoding="utf-8")
    assert "<b>tiny</b>" not in html
    assert "what the layer before did, which it repeats" in html
    assert len(html.encode()) < 3_000_000


def test_a_saved_scan_joins_the_report(
    bert_folder: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("altair")
    scanned, out = tmp_path / "scan", tmp_path / "out"
    assert run(["scan", str(bert_folder), str(page), "-q", "--out", str(scanned)]) == 0
    without = ["explain", str(bert_folder), "-q", "--out", str(tmp_path / "alone")]
    assert run(without) == 0
    assert run(["explain", str(bert_folder), "-q", "--out", str(out), "--scan", str(scanned)]) == 0
    assert capsys.readouterr().err == ""
    both, alone = ((folder / "report.html").read_text(encoding="utf-8") for folder in (out, tmp_path / "alone"))
    assert "mean_cosine" in both
    assert "mean_cosine" not in alone


def test_json_is_all_of_standard_output(bert_folder: Path, page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(bert_folder), str(page), "--json", "--no-jacobian"]) == 0
    printed = capsys.readouterr()
    content = json.loads(printed.out)
    assert [layer["layer"] for layer in content["layers"]] == [1, 2, 3]
    assert len(content["heads"]) == 12
    assert [one["name"] for one in content["skills"]] == ["T0", "T1", "T2", "T3", "T4", "persistence", "verdicts"]
    assert printed.err == ""


def test_json_and_files_hold_the_same(bert_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(bert_folder), "--json", "--out", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "explanation.json").read_text(encoding="utf-8"))
    assert printed == written


def test_quiet_prints_nothing(bert_folder: Path, page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(bert_folder), str(page), "--quiet", "--no-jacobian"]) == 0
    assert capsys.readouterr() == ("", "")


def one_line(text: str) -> str:
    """The error, having checked that it is a single line without a traceback."""
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["./no-such-folder"], "no-such-folder"),
        (["nobody/no-such-model-at-all", "--offline"], "no-such-model-at-all"),
        (["BERT", "missing.txt"], "an existing text file or folder"),
        (["BERT", "EMPTY"], "at least one text"),
        (["BERT", "PAGE", "--batch-size", "0"], "--batch-size"),
        (["BERT", "PAGE", "--spectral-sequences", "0"], "--spectral-sequences"),
        (["BERT", "--blocks", "nothing.*"], "modules that match"),
        (["BERT", "--dtype", "float31"], "float31"),
        (["BERT", "--out", "TAKEN"], "a writable folder"),
        (["BERT", "--scan", "NOWHERE"], "scan"),
        (["BERT", "--device", "toaster"], "toaster"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    words: list[str], message: str, bert_folder: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    places = {
        "BERT": bert_folder,
        "PAGE": page,
        "EMPTY": tmp_path / "empty.txt",
        "TAKEN": page,
        "NOWHERE": tmp_path / "nowhere",
    }
    capsys.readouterr()
    assert run(["explain", *(str(places.get(word, word)) for word in words)]) == 2
    printed = capsys.readouterr()
    assert message in one_line(printed.err)
    assert printed.out == ""


def test_an_unknown_option_is_exit_code_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "--no-such-option"]) == 2
    assert "no-such-option" in capsys.readouterr().err


def test_nothing_is_left_behind_by_a_failed_run(bert_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(["explain", str(bert_folder), "missing.txt", "--out", str(out)]) == 2
    assert not out.exists()


def test_blocks_of_no_known_family(bert_folder: Path, page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Attention alone, found as a block by itself, has the heads that it has in the whole block."""
    heads = []
    for words in (["--blocks", "encoder.layer.*.attention"], []):
        assert run(["explain", str(bert_folder), *words, "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        heads.append([(head["layer"], head["head"], head["verdict"]) for head in content["heads"]])
    assert heads[0] == heads[1] != []


def test_nan_weights_are_told_and_the_rest_explained(
    bert_folder: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer, BertModel

    model = BertModel.from_pretrained(bert_folder)
    model.encoder.layer[1].attention.self.value.weight.data[0, 0] = float("nan")
    model.save_pretrained(tmp_path / "nan")
    AutoTokenizer.from_pretrained(bert_folder).save_pretrained(tmp_path / "nan")
    capsys.readouterr()
    out = tmp_path / "out"
    assert run(["explain", str(tmp_path / "nan"), str(page), "--json", "--out", str(out)]) == 1
    content = json.loads(capsys.readouterr().out)
    assert [layer["verdict"] == "undecided" for layer in content["layers"]] == [False, True, False]
    assert any("head 0" in note for note in content["notes"])
    assert content["layers"][0]["similarity_after"] is not None
    assert content["layers"][2]["similarity_after"] is None
    assert unsmooth.load_explanation(out).layers[2].measured is None


def test_ctrl_c_ends_without_a_traceback(
    bert_folder: Path, page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from unsmooth.explaining import run as explaining_run

    def interrupt(batch: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(explaining_run, "hash_batch", interrupt)
    assert run(["explain", str(bert_folder), str(page), "--no-jacobian", "-q"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_debug_shows_the_traceback(bert_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(bert_folder), "missing.txt", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_help_names_it_and_needs_no_torch() -> None:
    program = (
        "import sys; from unsmooth.cli.app import run; run(['explain', '--help']); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "--json" in done.stdout
