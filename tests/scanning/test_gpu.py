"""The same numbers on a GPU; skipped, and said so, where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import unsmooth
from unsmooth.models import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]
METRICS = ["mean_cosine", "token_diversity", "rank_one_residual", "effective_rank", "escalation_rate", "isoscore"]
WIDER = [
    "self_similarity(contexts=2)",
    "maximum_explainable_variance(contexts=2)",
    "random_pair_cosine",
    "cosine_quantile",
    "linear_cka",
    "head_similarity",
    "relative_log_amplitude(grid=(1, 2))",
]
SITES = ("residual", "normed", "attention", "mid", "mlp")


def test_the_gpu_gives_the_numbers_of_the_cpu(bert_folder, texts):
    model = load(str(bert_folder))
    here = unsmooth.scan(model, texts, metrics=METRICS, sites=SITES, batch_size=2, progress=False)
    there = unsmooth.scan(model, texts, metrics=METRICS, sites=SITES, batch_size=2, device="cuda", progress=False)
    assert next(model.parameters()).device.type == "cpu"
    one, two = here.to_frame(), there.to_frame()
    for column in ("mean", "std", "ci_low", "ci_high"):
        np.testing.assert_allclose(two[column], one[column], atol=2e-5, rtol=2e-5)
    assert list(one["tokens"]) == list(two["tokens"])
    for a, b in zip(here.confounds, there.confounds, strict=True):
        assert b.without_both == pytest.approx(a.without_both, abs=1e-5)
        assert b.outlier_dimensions == a.outlier_dimensions
    assert there.manifest["data"]["sha256"] == here.manifest["data"]["sha256"]
    assert there.manifest["model"]["weights_sha256"] == here.manifest["model"]["weights_sha256"]


def test_metrics_beyond_one_sequence_on_the_gpu(bert_folder, texts):
    """The texts have two content tokens each, so that these lie on a grid."""
    model, pairs = load(str(bert_folder)), [" ".join(text.split()[:2]) for text in texts]
    here = unsmooth.scan(model, pairs, metrics=WIDER, batch_size=2, progress=False)
    there = unsmooth.scan(model, pairs, metrics=WIDER, batch_size=2, device="cuda", progress=False)
    for column in ("mean", "std"):
        np.testing.assert_allclose(there.to_frame()[column], here.to_frame()[column], atol=2e-5, rtol=2e-5)
    for one, two in zip(here.profiles, there.profiles, strict=True):
        np.testing.assert_allclose(two.to_frame(), one.to_frame(), atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_products_do_not_touch_the_statistics(dtype):
    x = (torch.randn(4, 200, 64) * 0.3 + torch.randn(64)).to(dtype)
    stream = nn.Sequential(nn.Identity(), nn.Identity())
    exact = unsmooth.scan(stream, x.double(), blocks="*", progress=False)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            found = unsmooth.scan(stream, x.cuda(), blocks="*", device="cuda", progress=False)
    finally:
        torch.set_float32_matmul_precision(before)
    np.testing.assert_allclose(found.to_frame()["mean"], exact.to_frame()["mean"], rtol=1e-5, atol=1e-5)


def test_masks_on_the_gpu_and_a_random_baseline(bert_folder, texts):
    model = load(str(bert_folder), device="cuda")
    encoded = {
        key: value.cuda()
        for key, value in model.unsmooth_origin.tokenizer(texts, padding=True, return_tensors="pt").items()
    }
    found = unsmooth.scan(model, encoded, baseline=True, progress=False)
    words = unsmooth.scan(load(str(bert_folder)), texts, progress=False)
    assert found.rows[0].tokens == words.rows[0].tokens
    assert found.curve()[-1].mean == pytest.approx(words.curve()[-1].mean, abs=1e-5)
    assert found.baseline is not None
