"""Two processes give the numbers of one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import unsmooth
from tests.two_processes import in_two_processes
from unsmooth.models import load

PROGRAM = """
import sys, torch, torch.distributed as dist, unsmooth
from unsmooth.models import load
dist.init_process_group("gloo")
torch.set_num_threads(1)
texts = open(sys.argv[2]).read().split("\\n")
for batch_size in map(int, sys.argv[4].split()):
    found = unsmooth.scan(load(sys.argv[1]), texts, batch_size=batch_size, progress=False,
                          metrics=sys.argv[5].split("; "),
                          sites=("residual", "mlp"))
    if dist.get_rank() == 0:
        found.save(f"{sys.argv[3]}-{batch_size}")
"""


METRICS = [
    "mean_cosine",
    "token_diversity",
    "effective_rank",
    "escalation_rate",
    "self_similarity(contexts=2)",
    "maximum_explainable_variance(contexts=2)",
    "random_pair_cosine",
    "cosine_quantile",
    "linear_cka",
    "head_similarity",
]


BATCH_SIZES = {"many batches": 1, "uneven batches": 2, "one rank has none": 16}


@pytest.fixture(scope="module")
def by_two(bert_folder: Path, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes left their scans, out-1 and so on: starting them takes longer than scanning."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "texts").write_text("\n".join(texts))
    sizes = " ".join(map(str, BATCH_SIZES.values()))
    in_two_processes(PROGRAM, folder, [str(bert_folder), "texts", "out", sizes, "; ".join(METRICS)])
    return folder


ONE_IS_LOST = """
import os, sys
from unsmooth.cli import app
from unsmooth.scanning import one_pass
if os.environ["RANK"] == "1":
    one_pass.hash_batch = lambda batch: os._exit(0)
code = app.run(["scan", sys.argv[1], sys.argv[2], "--batch-size", "1", "--device", "cpu", "--json"])
print(f"exit code {code}", flush=True)
os._exit(0)
"""


def test_a_lost_process_is_one_line(bert_folder: Path, texts: list[str], tmp_path: Path):
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    in_two_processes(ONE_IS_LOST, tmp_path, [str(bert_folder), "texts.txt"])
    *_, line, code = (tmp_path / "said-0.txt").read_text().splitlines()
    assert line.startswith("unsmooth: Expected 2 processes to scan together but got no answer from another one on rank")
    assert "gloo" not in (tmp_path / "said-0.txt").read_text()
    assert code == "exit code 2"


@pytest.mark.parametrize("batch_size", BATCH_SIZES.values(), ids=BATCH_SIZES.keys())
def test_two_processes_equal_one(by_two: Path, bert_folder: Path, texts: list[str], batch_size: int):
    together = unsmooth.load_scan(by_two / f"out-{batch_size}")
    alone = unsmooth.scan(
        load(str(bert_folder)),
        texts,
        batch_size=batch_size,
        progress=False,
        metrics=METRICS,
        sites=("residual", "mlp"),
    )
    one, two = alone.to_frame(), together.to_frame()
    assert list(one["sequences"]) == list(two["sequences"])
    assert list(one["tokens"]) == list(two["tokens"])
    for column in ("mean", "std", "ci_low", "ci_high"):
        np.testing.assert_allclose(two[column], one[column], atol=1e-6)
    assert any(row.metric.startswith("self_similarity") and row.sequences > 3 for row in together.rows)
    for profile, other in zip(alone.profiles, together.profiles, strict=True):
        np.testing.assert_allclose(other.to_frame(), profile.to_frame(), atol=1e-6)
    assert together.manifest["processes"] == 2
    assert together.manifest["data"] == json.loads(json.dumps(alone.manifest["data"]))
    assert together.changes["mean_cosine"].mean == pytest.approx(alone.changes["mean_cosine"].mean, abs=1e-6)
    assert [c.mean_cosine for c in together.confounds] == pytest.approx([c.mean_cosine for c in alone.confounds])
