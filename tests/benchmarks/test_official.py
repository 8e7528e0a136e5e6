"""The authors' code beside ours: only what is meant is run, only files that are meant, and what was found is equal."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from benchmarks.official.__main__ import BAR, RESULTS, compared, comparisons, main, page, worst
from benchmarks.official.remedies import sigma_reparam
from benchmarks.official.side_by_side import Case, Comparison
from benchmarks.official.sources import Source, definitions, fetch

from unsmooth.errors import UnsmoothError
from unsmooth.remedies import names

TEXT = (
    "import nowhere\n\nraise SystemExit\n\n\nclass Twice(nn.Module):\n    def forward(self, x):\n        return 2 * x\n"
)
SEVEN = {"attnscale", "featscale", "contranorm", "neutreno", "gfsa", "sigma_reparam", "softdecay"}


@pytest.fixture
def source(tmp_path: Path) -> Source:
    file = tmp_path / "web" / "somebody" / "code" / "abc" / "deep" / "file.py"
    file.parent.mkdir(parents=True)
    file.write_text(TEXT)
    return Source("somebody/code", "abc", "deep/file.py", hashlib.sha256(TEXT.encode()).hexdigest())


def test_a_class_is_taken_out_of_a_file_that_cannot_be_imported() -> None:
    assert definitions(TEXT, ["Twice"]).Twice()(torch.tensor(3.0)) == 6.0
    with pytest.raises(UnsmoothError, match="defines Thrice"):
        definitions(TEXT, ["Twice", "Thrice"])


def test_files_come_from_where_they_are_and_must_be_the_ones_meant(source: Source, tmp_path: Path) -> None:
    here = tmp_path / "here"
    with pytest.raises(UnsmoothError, match="--fetch"):
        source.read(here)
    fetch([source], here, f"file://{tmp_path}/web/{{repository}}/{{commit}}/{{path}}")
    assert source.read(here) == TEXT
    source.below(here).write_text(TEXT + "# later\n")
    with pytest.raises(UnsmoothError, match=r"file.py of somebody/code at commit abc .* that commit"):
        source.read(here)


def test_without_a_network_one_line_says_what_to_do(source: Source, tmp_path: Path) -> None:
    here = tmp_path / "here"
    for url in (f"file://{tmp_path}/nowhere/{{path}}", "http://127.0.0.1:9/{path}"):
        with pytest.raises(
            UnsmoothError, match=r"the authors' file from .*deep/file\.py but got .* with a network"
        ) as told:
            fetch([source], here, url)
        assert "\n" not in str(told.value)
    assert not source.below(here).exists()


def test_every_comparison_is_of_a_remedy() -> None:
    assert {one.remedy for one in comparisons()} == SEVEN
    assert set(names()) >= SEVEN


def test_without_their_files_one_line_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"no such file.*--fetch"):
        main(["--sources", str(tmp_path), "--out", str(tmp_path / "out.json")])
    assert not (tmp_path / "out.json").exists()


def test_a_difference_is_found() -> None:
    x = torch.randn(2, 3, 4)
    same = Case("", lambda x: x.square(), lambda x: x * x, x).differences()
    other = Case("", lambda x: x.square(), lambda x: x * x + 1e-3 * x, x).differences()
    assert same == {"output": 0.0, "gradient": 0.0}
    assert other["output"] == pytest.approx(1e-3 * float(x.abs().max()), rel=1e-3)
    assert other["gradient"] > 1e-4


def test_rows_are_of_both_precisions_and_torch_is_left_as_it_was(tmp_path: Path) -> None:
    def cases(folder: Path, dtype: torch.dtype) -> list[Case]:
        assert torch.get_default_dtype() == dtype
        x = torch.ones(1, 2, 3, dtype=dtype)
        return [Case("s", lambda x: x, lambda x: x + (0.0 if dtype == torch.float64 else 1e-4), x)]

    found = {"remedies": [compared(Comparison("gfsa", sigma_reparam.COMPARISON.sources, cases), tmp_path)]}
    assert torch.get_default_dtype() == torch.float32
    assert worst(found, "float32") == pytest.approx(1e-4, rel=1e-2)
    assert worst(found, "float64") == 0.0
    assert "| `gfsa` | s | 1.0e-04 | 0.0e+00 |" in page(found)


def test_what_was_found_is_equal() -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert {one["remedy"] for one in found["remedies"]} == SEVEN
    assert worst(found, "float32") <= BAR
    assert worst(found, "float64", but="softdecay") < 1e-12
    wanted = {one.remedy: [vars(source) for source in one.sources] for one in comparisons()}
    assert {one["remedy"]: one["sources"] for one in found["remedies"]} == wanted
