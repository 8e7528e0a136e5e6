"""Two processes give the numbers of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import unsmooth
from unsmooth.models import load

PROGRAM = """
import sys, torch, torch.distributed as dist, unsmooth
from unsmooth.models import load
dist.init_process_group("gloo")
torch.set_num_threads(1)
texts = open(sys.argv[2]).read().split("\\n")
found = unsmooth.scan(load(sys.argv[1]), texts, batch_size=int(sys.argv[4]), progress=False,
                      metrics=sys.argv[5].split("; "),
                      sites=("residual", "mlp"))
if dist.get_rank() == 0:
    found.save(sys.argv[3])
dist.destroy_process_group()
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


@pytest.mark.parametrize("batch_size", [1, 2, 16], ids=["many batches", "uneven batches", "one rank has none"])
def test_two_processes_equal_one(bert_folder: Path, texts: list[str], tmp_path: Path, batch_size: int):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "texts").write_text("\n".join(texts))
    words = ["program.py", str(bert_folder), "texts", "out", str(batch_size), "; ".join(METRICS)]
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", *words],
        cwd=tmp_path,
        check=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
    )
    together = unsmooth.load_scan(tmp_path / "out")
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
