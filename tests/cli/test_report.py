"""``unsmooth report`` as a user types it."""

from __future__ import annotations

import json

import pytest

from tests.report.training.fake_runs import write_run
from unsmooth.cli.app import run

pytest.importorskip("altair", reason="the report extra is not installed")
pytest.importorskip("vl_convert", reason="the report extra is not installed")


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    for seed in (0, 1):
        write_run(folder / f"seed-{seed}", seed=seed, epochs=2, synthetic=True)
    return folder


def test_folder_of_seeds_becomes_one_page_in_it(seeds, capsys):
    assert run(["report", str(seeds)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "0.5911 ± 0.0028" in printed
    assert "Synthetic data." in printed
    assert f"report: {seeds / 'report.html'}" in printed
    assert "2 seeds" in (seeds / "report.html").read_text(encoding="utf-8")


def test_json_is_all_of_standard_output_and_a_run_named_twice_is_one(seeds, tmp_path, capsys):
    page = tmp_path / "deep" / "page.html"
    assert run(["report", str(seeds), str(seeds / "seed-1"), "--out", str(page), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["report"] == str(page)
    assert page.exists()
    assert [(one["seed"], one["synthetic"], one["final"]["steps"]) for one in content["runs"]] == [
        (0, True, 200),
        (1, True, 200),
    ]


def test_quiet_prints_nothing_and_a_folder_takes_the_page(seeds, tmp_path, capsys):
    assert run(["report", str(seeds / "seed-0"), "-q", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{empty}"], "Expected a run that `unsmooth train` wrote"),
        (["{empty}/none"], "but got nothing"),
        (["{seeds}", "--out", "{empty}/page.txt"], "ends in .html"),
    ],
)
def test_bad_input_is_told_in_one_line(seeds, tmp_path, capsys, words, said):
    told = [word.format(empty=tmp_path, seeds=seeds) for word in words]
    assert run(["report", *told]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [3]},
        {"metrics": {}},
        {"name": ["\x1b[2J"]},
        {"profiles": [{"lines": 1}]},
        {"healthy": "no"},
        {"rows": []},
    ],
)
def test_one_odd_scan_is_named_and_the_rest_of_the_report_stands(tmp_path, capsys, change):
    write_run(tmp_path / "run", seed=0, epochs=2, synthetic=True)
    scans = sorted((tmp_path / "run").glob("scans/step-*/scan.json"))
    scans[0].write_text(json.dumps(json.loads(scans[0].read_text()) | change))
    assert run(["report", str(tmp_path / "run")]) == 0
    said, told = "No whole scan was found of step 0.", capsys.readouterr()
    assert f"unsmooth: run: {said}" in told.err
    assert "0.5" in told.out
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert said in page
    assert "mean_cosine" in page


def test_what_comes_from_files_cannot_steer_the_terminal(tmp_path, capsys):
    evil = "plain\x1b]0;title\x07\x1b[2J\u202egnp.\x9b31m"
    write_run(tmp_path / "run", seed=0, epochs=2, synthetic=True)
    for scan in (tmp_path / "run").glob("scans/step-*/scan.json"):
        content = json.loads(scan.read_text())
        card = next(iter(content["metrics"].values()))
        first = {(row["layer"], row["site"]): {**row, "metric": evil} for row in content["rows"]}
        odd = {"metrics": {evil: {**card, "name": evil, "definition": evil}}, "rows": list(first.values())}
        scan.write_text(json.dumps(content | odd | {"name": evil, "sentence": evil, "changes": {}}))
    folder = str(next((tmp_path / "run").glob("scans/step-*")))
    for words in (["compare", folder, folder], ["watch", str(tmp_path / "run"), "--once"], ["compare", folder, evil]):
        run(words)
        told = "".join(capsys.readouterr())
        assert not [letter for letter in told if not (letter.isprintable() or letter in "\n")], words
        assert "[2J" in told
