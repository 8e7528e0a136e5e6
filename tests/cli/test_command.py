"""The command as a user types it: output, files, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import unsmooth
from unsmooth.cli.app import run
from unsmooth.cli.scan_output import Findings, _tell_conditions
from unsmooth.scanning.condition import Condition


@pytest.fixture
def page(tmp_path: Path, texts: list[str]) -> Path:
    path = tmp_path / "page.txt"
    path.write_text("\n\n".join(texts), encoding="utf-8")
    return path


def test_help_needs_no_torch():
    program = "import sys; from unsmooth.cli.app import run; run(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "scan" in done.stdout
    assert "compare" in done.stdout


def test_scan_prints_a_table_and_a_sentence(bert_folder, page, capsys):
    assert run(["scan", str(bert_folder), str(page)]) == 0
    printed = capsys.readouterr()
    assert "mean_cosine" in " ".join(printed.out.split())
    assert "Tokens grow" in printed.out
    assert "--out DIR" in printed.out
    assert printed.err == ""


def test_scan_writes_files_figures_and_report(bert_folder, page, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["scan", str(bert_folder), str(page), "--baseline", "--sites", "all", "--out", str(out)]) == 0
    assert str(out / "report.html") in capsys.readouterr().out.replace("\n", "")
    assert {path.name for path in out.iterdir()} == {
        "figures",
        "manifest.json",
        "report.html",
        "scan.csv",
        "scan.json",
    }
    saved = unsmooth.load_scan(out)
    assert set(saved.sites) == {"residual", "normed", "attention", "mid", "mlp"}
    assert saved.baseline is not None


def test_json_is_all_of_standard_output(bert_folder, page, capsys):
    assert (
        run(["scan", str(bert_folder), str(page), "--json", "--metrics", "stable_rank,mean_cosine(with_self=True)"])
        == 0
    )
    content = json.loads(capsys.readouterr().out)
    assert list(content["metrics"]) == ["stable_rank", "mean_cosine(with_self=True)"]


def test_quiet_prints_nothing(bert_folder, page, capsys):
    assert run(["scan", str(bert_folder), str(page), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("condition", "code"), [("mean_cosine@last>0.999", 0), ("mean_cosine@last>-1", 1)])
def test_fail_if_sets_the_exit_code(bert_folder, page, capsys, condition, code):
    assert run(["scan", str(bert_folder), str(page), "-q", "--fail-if", condition]) == code
    assert ("holds" in capsys.readouterr().err) == bool(code)


def test_a_metric_that_only_a_condition_names_is_measured(bert_folder, page, capsys):
    assert run(["scan", str(bert_folder), str(page), "-q", "--fail-if", "effective_rank@last>0"]) == 1
    assert "effective_rank@last>0 holds" in capsys.readouterr().err


def test_the_figure_that_meets_a_condition_is_no_negative_zero(capsys):
    model, x = torch.nn.Sequential(torch.nn.Identity()), torch.eye(4)[None]
    x[:, 0, 1] = -1e-5
    found = Findings(several=False, scans={None: unsmooth.scan(model, x, blocks="*", progress=False)})
    assert _tell_conditions(found, [Condition.parse("mean_cosine@last<1")])
    assert "mean_cosine@last<1 holds: −1.6" in capsys.readouterr().err


def test_compare_overlays_saved_scans(bert_folder, page, tmp_path, capsys):
    for name in ("one", "two"):
        run(["scan", str(bert_folder), str(page), "-q", "--name", name, "--out", str(tmp_path / name)])
    assert run(["compare", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(tmp_path / "both")]) == 0
    printed = capsys.readouterr().out
    assert "one" in printed
    assert "two" in printed
    html = (tmp_path / "both" / "report.html").read_text(encoding="utf-8")
    assert len(html.encode()) < 2_000_000
    assert run(["compare", str(tmp_path / "one"), str(tmp_path / "two"), "--json"]) == 0
    assert [item["name"] for item in json.loads(capsys.readouterr().out)] == ["one", "two"]


@pytest.mark.parametrize(("what", "name"), [("metrics", "mean_cosine"), ("models", "bert")])
def test_ls(what, name, capsys):
    assert run(["ls", what]) == 0
    assert name in capsys.readouterr().out
    assert run(["ls", what, "--json"]) == 0
    assert name in [entry["name"] for entry in json.loads(capsys.readouterr().out)]


def test_ls_of_some(capsys):
    assert run(["ls", "remedies", "spa", "gfsa", "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == ["gfsa", "spa"]
    assert run(["ls", "remedies", "gfsa"]) == 0
    told = capsys.readouterr().out
    assert "gfsa(order=4" in told
    assert "talking_heads(" not in told


def one_line(text: str) -> str:
    """The error, having checked that it is a single line without a traceback."""
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scan", "BERT", "PAGE", "--metrics", "mean_cosin"], "Did you mean 'mean_cosine'"),
        (["scan", "BERT", "PAGE", "--sites", "resid"], "Did you mean 'residual'"),
        (["scan", "BERT", "PAGE", "--tokens", "some"], "choice of tokens"),
        (["scan", "BERT", "PAGE", "--blocks", "nothing.*"], "modules that match"),
        (["scan", "BERT", "PAGE", "--fail-if", "mean_cosine=1"], "a condition"),
        (["scan", "BERT", "PAGE", "--dtype", "float31"], "float31"),
        (["scan", "BERT", "missing.txt"], "an existing text file or folder"),
        (["scan", "BERT", "EMPTY"], "at least one text"),
        (
            ["scan", "BERT", "PDF"],
            "a readable text file at paper.pdf but got one that is no UTF-8 text. Try its text in",
        ),
        (["scan", "BERT", "SHORT"], "two or more tokens"),
        (["scan", "./no-such-folder", "PAGE"], "no-such-folder"),
        (["scan", "BERT", "PAGE", "--out", "TAKEN"], "a writable folder"),
        (["scan", "BERT", "missing.txt", "--out", "NEW"], "an existing text file or folder"),
        (["explain", "BERT", "PDF", "--out", "NEW"], "a readable text file"),
        (["compare", "BERT", "BERT", "--out", "NEW"], "a folder that Scan.save wrote"),
        (["compare", "BERT"], "at least two scans"),
        (["compare", "BERT", "BERT"], "a folder that Scan.save wrote"),
        (["ls", "metric"], "Did you mean 'metrics'"),
        (["ls", "remedies", "gfssa"], "Did you mean 'gfsa'"),
    ],
)
def test_bad_input_is_told_in_one_line(bert_folder, page, tmp_path, capsys, words, message):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("cat")
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "paper.pdf").write_bytes(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    before = sorted(tmp_path.rglob("*"))
    places = {
        "BERT": str(bert_folder),
        "PAGE": str(page),
        "EMPTY": str(tmp_path / "empty.txt"),
        "SHORT": str(tmp_path / "short.txt"),
        "PDF": str(tmp_path / "paper.pdf"),
        "TAKEN": str(tmp_path / "taken"),
        "NEW": str(tmp_path / "new" / "folder"),
    }
    assert run([places.get(word, word) for word in words]) == 2
    printed = capsys.readouterr()
    assert message in one_line(printed.err)
    assert printed.out == ""
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("words", [[], ["data"]])
def test_without_a_word_there_is_the_help_and_nothing_else(words, capsys):
    assert run(words) == 2
    printed = capsys.readouterr()
    assert "Usage: unsmooth" in printed.out + printed.err
    assert "Try --help" not in printed.out + printed.err


@pytest.mark.parametrize(
    ("verb", "options", "message"),
    [
        ("scan", ["--metrics", "mean_cosine(absolute=no)"], "absolute as True or False but got 'no'"),
        ("scan", ["--metrics", "cosine_quantile(q=2)"], "q between 0.0 and 1.0 but got 2. Try q=0.5."),
        ("scan", ["--metrics", "cosine_quantile(q=0.1, q=0.9)"], "q once"),
        ("scan", ["--metrics", "a" * 5000], "in up to 4,096 characters"),
        ("scan", ["--sites", "resid"], "Did you mean 'residual'"),
        ("scan", ["--tokens", "some"], "choice of tokens"),
        ("scan", ["--preset", "vitta"], "Did you mean 'vita'"),
        ("scan", ["--preset", "vita(tokens=all)"], "no options of vita"),
        ("scan", ["--with", "deescalate(tau=9)"], "tau between 0.0 and 2.0 but got 9"),
        ("scan", ["--fail-if", "cosine_quantile(q=2)@last>0"], "q between 0.0 and 1.0"),
        ("scan", ["--device", "cud"], "a device of this machine but got 'cud'"),
        ("scan", ["--device", "cuda:99"], "a device of this machine but got 'cuda:99'"),
        ("scan", ["--batch-size", "0"], "Invalid value for '--batch-size'"),
        ("explain", ["--device", "cuda:99"], "Try --device cpu."),
        ("explain", ["--with", "deescalate(place=resid)"], "Try place='residual'."),
        ("presets", ["--device", "cuda:99"], "a device of this machine"),
        ("apply deescalate(tau=1,tau=2)", ["--out", "OUT"], "tau once"),
        ("apply deescalate", ["--out", "OUT", "--set", "tau=9"], "tau between 0.0 and 2.0"),
        ("apply deescalate", ["--out", "OUT", "--set", "tau=1", "--set", "tau=2"], "tau once but got tau=1 and tau=2"),
    ],
)
def test_what_is_wrong_by_itself_is_told_before_a_model_is_opened(
    verb, options, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("unsmooth.models.load", lambda *given, **options: pytest.fail("opened"))
    words = [*verb.split(), "some/model", *options]
    assert run([str(tmp_path / "out") if word == "OUT" else word for word in words]) == 2
    assert message in one_line(capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_a_mistyped_name_costs_no_import_of_torch():
    commands = [
        *(["scan", "m", "--metrics", "mean_cosin"], ["scan", "m", "--fail-if", "mean_cosin@last>0"]),
        *(["scan", "m", "--with", "sharpen + deescalat(tau=1)"], ["scan", "m", "--preset", "vitta"]),
        *(["explain", "m", "--with", "deescalat"], ["apply", "deescalat", "m", "--out", "o"]),
        *(["train", "vit_cifar100", "--with", "deescalat"], ["train", "vit_cifar100", "--variant", "deescalat"]),
    ]
    code = "import sys; from unsmooth.cli.app import run; codes = [run(words) for words in eval(sys.argv[1])]; "
    code += "print(codes, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, repr(commands)], capture_output=True, text=True, check=True)
    assert done.stdout.split("] ") == [str([2] * 8)[:-1], "False\n"]
    assert done.stderr.count("Did you mean") == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fail-if", "mean_cosine@4>0.5"], "a layer from 0 to 3 but got 4. Try mean_cosine@last."),
        (
            ["--fail-if", "mean_cosine@any:mlp>0.5"],
            "a site that is measured (residual) but got 'mlp'. Try --sites mlp.",
        ),
        (["--fail-if", "mean_cosine@encoder:last>0.5"], "no stack, as the model has only one"),
        (["--preset", "yu_zhang", "--fail-if", "mean_cosine>0.5"], "a known metric of this scan but got 'mean_cosine'"),
    ],
)
def test_conditions_that_cannot_be_judged_are_told_before_the_scan(
    bert_folder, page, capsys, monkeypatch, options, message
):
    monkeypatch.setattr("unsmooth.scanning.run.one_pass", lambda *given, **options: pytest.fail("scanned"))
    assert run(["scan", str(bert_folder), str(page), "--quiet", *options]) == 2
    assert message in one_line(capsys.readouterr().err)


def test_truncated_weights_and_pickles_are_told_in_one_line(bert_folder, page, tmp_path, capsys):
    import shutil

    import torch

    broken = tmp_path / "broken"
    shutil.copytree(bert_folder, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    assert run(["scan", str(broken), str(page)]) == 2
    assert "model.safetensors" in one_line(capsys.readouterr().err)
    weights.unlink()
    torch.save({}, broken / "pytorch_model.bin")
    assert run(["scan", str(broken), str(page)]) == 2
    assert "--allow-pickle" in one_line(capsys.readouterr().err)


def test_debug_shows_the_traceback(bert_folder, capsys):
    assert run(["scan", str(bert_folder), "missing.txt", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_nan_weights_end_in_a_result_and_a_failure(bert_folder, page, tmp_path, capsys):
    from transformers import AutoTokenizer, BertModel

    model = BertModel.from_pretrained(bert_folder)
    model.encoder.layer[1].output.dense.weight.data.fill_(float("nan"))
    model.save_pretrained(tmp_path / "nan")
    AutoTokenizer.from_pretrained(bert_folder).save_pretrained(tmp_path / "nan")
    assert run(["scan", str(tmp_path / "nan"), str(page), "--out", str(tmp_path / "out")]) == 1
    assert "first at layer 2 (residual) in batch 0" in capsys.readouterr().err
    saved = unsmooth.load_scan(tmp_path / "out")
    assert not saved.healthy
    assert [row.sequences for row in saved.curve()] == [5, 5, 0, 0]


@pytest.fixture
def hears_ctrl_c():
    """A process started in the background ignores the signal, and Python leaves it at that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_what_is_done(number, bert_folder, page, tmp_path, capsys, monkeypatch, hears_ctrl_c):
    from unsmooth.scanning import one_pass

    read = one_pass.own_batches

    def interrupted_after_two(*arguments):
        for number, batch in read(*arguments):
            if number == 2:
                signal.raise_signal(number)
            yield number, batch

    monkeypatch.setattr(one_pass, "own_batches", interrupted_after_two)
    out = tmp_path / "out"
    assert run(["scan", str(bert_folder), str(page), "--batch-size", "1", "--out", str(out), "--quiet"]) == 130
    assert f"what is done is saved in {out}" in one_line(capsys.readouterr().err)
    saved = unsmooth.load_scan(out)
    assert not saved.complete
    assert saved.rows[0].sequences == 2
    assert "Interrupted after 2 batches" in saved.notes[0]


def test_torchrun_runs_one_scan(bert_folder, page, tmp_path):
    words = ["-m", "unsmooth", "scan", str(bert_folder), str(page), "--batch-size", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    content = json.loads(done.stdout)
    assert content["manifest"]["processes"] == 2
    assert content["rows"][0]["sequences"] == 5


def test_a_column_of_a_table(bert_folder, page, texts, tmp_path, capsys):
    import pandas

    pandas.DataFrame({"review": texts, "author": "somebody"}).to_csv(tmp_path / "a.csv", index=False)
    words = ["scan", str(bert_folder), "--metrics", "mean_cosine", "--json"]
    assert run([*words, str(page)]) == 0
    wanted = json.loads(capsys.readouterr().out)["rows"]
    assert run([*words, str(tmp_path / "a.csv"), "--column", "review"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == wanted
    assert run(["scan", str(bert_folder), str(tmp_path / "a.csv")]) == 2
    told = capsys.readouterr().err
    assert "but got the columns 'review', 'author'" in told
    assert "--column" in told


def test_a_model_that_reads_text_is_not_asked_for_an_image_processor(bert_folder, tmp_path, capsys):
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    assert run(["scan", str(bert_folder), str(tmp_path / "a.png")]) == 2
    assert "Expected texts, which this model reads but got images." in capsys.readouterr().err
