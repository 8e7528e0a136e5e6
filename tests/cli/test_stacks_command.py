"""Models with several stacks on the command line and in reports: every stack has its table, curve and condition."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import unsmooth
from tests.models.stack_entries import STACK_ENTRIES
from unsmooth.cli.app import run
from unsmooth.cli.explain_tables import print_explanation, print_verdicts
from unsmooth.cli.tables import print_models, print_scan
from unsmooth.report import write_report
from unsmooth.report.series import series_of

BY_NAME = {entry.name: entry for entry in STACK_ENTRIES}


@pytest.fixture(scope="module")
def t5_folder(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny T5 with the tokenizer of the tiny BERT."""
    folder = tmp_path_factory.mktemp("tiny-t5")
    for path in bert_folder.glob("*token*"):
        shutil.copy(path, folder)
    torch.manual_seed(1)
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=24, num_layers=3, num_decoder_layers=2, num_heads=2
    )
    transformers.T5Model(config).save_pretrained(folder)
    return folder


@pytest.fixture
def page(tmp_path: Path, texts: list[str]) -> Path:
    path = tmp_path / "page.txt"
    path.write_text("\n\n".join(texts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def both() -> unsmooth.Scan:
    entry = BY_NAME["t5-relu"]
    return unsmooth.scan(
        entry.model(), entry.batch(), name="t5", sites=("residual", "cross"), baseline=True, progress=False
    )


def test_texts_run_the_encoder_and_a_note_says_so(t5_folder: Path, page: Path, capsys: Any) -> None:
    code = run(["scan", str(t5_folder), str(page), "--fail-if", "mean_cosine@encoder:last>-2"])
    printed = capsys.readouterr()
    assert code == 1
    assert "encoder — residual" in " ".join(printed.out.split())
    assert "The decoder stack was not run: the data has no 'decoder_input_ids'." in " ".join(printed.out.split())
    assert "at layer 3 of the encoder." in printed.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--fail-if", "mean_cosine@decoder:last>0"], "a known stack of this scan but got 'decoder'"),
        (["--explain", "--blocks", "decoder.block.*"], "t5 blocks with cross-attention"),
        (["--blocks", "decoder.block.*"], "Expected 'decoder_input_ids' in each batch, which the decoder reads"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    t5_folder: Path, page: Path, more: list[str], message: str, capsys: Any
) -> None:
    assert run(["scan", str(t5_folder), str(page), "--quiet", *more]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_every_site_of_every_stack(t5_folder: Path, page: Path, capsys: Any) -> None:
    assert run(["scan", str(t5_folder), str(page), "--sites", "all", "--metrics", "mean_cosine", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert set(content["sites"]) == {"residual", "normed", "attention", "mid", "mlp"}
    assert {row["stack"] for row in content["rows"]} == {"encoder"}


def test_every_stack_has_its_table(both: unsmooth.Scan, capsys: Any) -> None:
    print_scan(both, None)
    printed = " ".join(capsys.readouterr().out.split())
    for title in ("t5 · encoder — residual", "t5 · decoder — residual", "t5 · decoder — cross"):
        assert title in printed
    assert "t5 · encoder — cross" not in printed
    assert "3 sequences, 12 tokens" in printed
    assert "3 sequences, 10 tokens" in printed
    print_models([both, both], None)
    assert capsys.readouterr().out.count("cross") >= 1


def test_stages_have_a_column(capsys: Any) -> None:
    entry = BY_NAME["swin-shifted"]
    found = unsmooth.scan(entry.model(), entry.batch(), metrics=["mean_cosine", "token_similarity"], progress=False)
    print_scan(found, None)
    lines = capsys.readouterr().out.splitlines()
    assert any("stage" in line and "layer" in line for line in lines)
    cells = [line.strip("│").split("│")[:2] for line in lines if line.startswith("│")]
    assert [(stage.strip(), layer.strip()) for stage, layer in cells[:6]] == [
        ("0", "0"),
        ("0", "1"),
        ("0", "2"),
        ("1", "3"),
        ("1", "4"),
        ("2", "5"),
    ]


def test_every_stack_has_its_explanation(tmp_path: Path, capsys: Any) -> None:
    entry = BY_NAME["clip"]
    found = unsmooth.explain(entry.model(), entry.batch(), name="clip", jacobian=False, progress=False)
    print_explanation(found, None)
    printed = " ".join(capsys.readouterr().out.split())
    print_verdicts({"one": found, "two": found}, None)
    side_by_side = " ".join(capsys.readouterr().out.split())
    page = write_report([], tmp_path / "report.html", explanations=[found]).read_text(encoding="utf-8")
    for stack in ("text", "vision"):
        assert f"clip · {stack} — why, by layer" in printed
        assert f"one · {stack}" in side_by_side
        assert f'<article class="why" aria-label="Why: clip · {stack}">' in page


def test_every_stack_is_a_curve_of_its_own(both: unsmooth.Scan) -> None:
    series = series_of([both])
    assert [one.name for one in series] == [
        "t5 · encoder",
        "t5 (random weights) · encoder",
        "t5 · decoder",
        "t5 (random weights) · decoder",
    ]
    assert len({one.colour for one in series}) == 2
    assert [row.layer for row in series[2].curve("mean_cosine", "residual")] == [0, 1, 2]
    assert not series[0].curve("mean_cosine", "cross")
    assert "t5 · decoder" in both._repr_html_()


def test_saved_scans_of_several_stacks_are_compared(both: unsmooth.Scan, tmp_path: Path, capsys: Any) -> None:
    both.save(tmp_path / "one")
    both.save(tmp_path / "two")
    folders = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert run(["compare", *folders, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [one["stack"] for one in content] == ["encoder", "decoder"] * 2
    assert run(["compare", *folders, "--site", "cross", "--json"]) == 0
    assert [one["stack"] for one in json.loads(capsys.readouterr().out)] == ["decoder"] * 2
    assert run(["compare", *folders, "--site", "mlp"]) == 2
    assert "a site where mean_cosine was measured (cross, residual)" in capsys.readouterr().err
