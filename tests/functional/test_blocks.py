"""What is computed block by block is what each property would compute by itself."""

from __future__ import annotations

import pytest
import torch

from unsmooth.functional import METRICS, Tokens, _blocks, parse_metric
from unsmooth.functional._blocks import SUMS, Shelf, Workspace, blocks, joined, light_tokens, measure, reading_of
from unsmooth.scanning.confounds import find_confounds

FILLED = (*sorted(SUMS), "inverse_norms_BN")


def measure_in_blocks(tokens: Tokens, workspace: Workspace) -> None:
    vars(tokens).update(joined([measure(block) for block in blocks(tokens, workspace)]))


def tokens_of(kind: str, dtype: torch.dtype) -> Tokens:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 20, 6, generator=generator).to(dtype)
    x[2, 3] = 0.0
    if kind == "no mask":
        return Tokens(x)
    if kind == "a window":
        return Tokens(x[:, 2:15])
    mask = torch.rand(7, 20, generator=generator) > 0.4
    mask[4] = False
    if kind == "a mask over numbers":
        return Tokens(torch.where(mask.unsqueeze(-1), x, 1e4), mask)
    return Tokens(torch.where(mask.unsqueeze(-1), x, torch.nan), mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["no mask", "a window", "a mask over NaN", "a mask over numbers"])
@pytest.mark.parametrize("sequences", [1, 3, 100])
def test_blocks_fill_in_what_the_properties_compute(monkeypatch, sequences: int, kind: str, dtype: torch.dtype) -> None:
    monkeypatch.setattr(_blocks, "_BLOCK", sequences * 20 * 6)
    alone, together = tokens_of(kind, dtype), tokens_of(kind, dtype)
    measure_in_blocks(together, Workspace())
    for name in FILLED:
        assert name in vars(together)
        torch.testing.assert_close(getattr(together, name), getattr(alone, name), check_dtype=False)
    assert "values_BND" not in vars(together)


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.default])
@pytest.mark.parametrize("kind", ["no mask", "a mask over NaN", "a mask over numbers"])
def test_default_metrics_need_nothing_but_the_sums(name: str, kind: str) -> None:
    tokens = tokens_of(kind, torch.float32)
    expected = METRICS[name].function(Tokens(tokens.input_BND, tokens.mask_BN))
    reading = reading_of(METRICS[name].function)
    assert not reading.vectors
    measure_in_blocks(tokens, Workspace())
    sums = {sum_name: getattr(tokens, sum_name) for sum_name in ("count_B", *reading.sums)}
    light = light_tokens(sums, tokens.input_BND.shape, tokens.dtype)
    torch.testing.assert_close(METRICS[name].function(light), expected)
    assert light.input_BND.device.type == "meta"


@pytest.mark.parametrize(
    ("text", "sums", "vectors"),
    [
        ("mean_cosine", {"norms_BN", "unit_sum_BD"}, False),
        ("mean_cosine(with_self=True)", {"norms_BN", "unit_sum_BD"}, False),
        ("mean_cosine(absolute=True)", {"norms_BN"}, True),
        ("token_similarity", {"mean_BD", "centred_energy_B"}, False),
        ("rank_one_residual(norm='frobenius')", {"mean_BD", "centred_energy_B"}, False),
        ("effective_rank", set(), True),
        ("cosine_quantile", set(), True),
    ],
)
def test_what_a_metric_reads_is_found_by_trying(text: str, sums: set[str], vectors: bool) -> None:
    reading = reading_of(parse_metric(text))
    assert reading.vectors == vectors
    if not vectors or sums:
        assert reading.sums == sums


def test_a_workspace_is_used_again_and_leaves_no_trace() -> None:
    workspace = Workspace()
    wide, narrow = torch.randn(3, 9, 4), torch.randn(2, 5, 4)
    first, second, third = Tokens(wide), Tokens(narrow), Tokens(wide)
    for tokens in (first, second, third):
        measure_in_blocks(tokens, workspace)
    for name in FILLED:
        torch.testing.assert_close(getattr(first, name), getattr(third, name), rtol=0, atol=0)
        torch.testing.assert_close(getattr(second, name), getattr(Tokens(narrow), name), check_dtype=False)
    rooms = [workspace.take("room", x.shape, x.dtype, x.device) for x in (narrow, wide)]
    assert rooms[0].data_ptr() == rooms[1].data_ptr()


@pytest.mark.parametrize("setting", ["autocast", "medium"])
def test_sums_stay_in_float32_whatever_products_are_allowed_to_do(setting: str) -> None:
    tokens = Tokens(torch.randn(4, 300, 64) + 3.0)
    exact = Tokens(tokens.input_BND.double())
    before = torch.get_float32_matmul_precision()
    try:
        if setting == "medium":
            torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", enabled=setting == "autocast"):
            measure_in_blocks(tokens, Workspace())
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(tokens.unit_sum_BD.double(), exact.unit_sum_BD, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(tokens.mean_BD.double(), exact.mean_BD, rtol=1e-5, atol=1e-5)


def test_a_shelf_keeps_what_is_put_on_it_until_it_is_cleared(monkeypatch) -> None:
    monkeypatch.setattr(_blocks, "_SLAB", 4096)
    shelf = Shelf()
    tensors = [torch.randn(3, 5), torch.randn(7).double(), torch.rand(2, 3) > 0.5, torch.randn(40, 50), torch.empty(0)]
    kept = [shelf.keep(tensor) for tensor in tensors]
    copies = [tensor.clone() for tensor in tensors]
    for tensor in tensors:
        tensor.zero_()
    for found, expected in zip(kept, copies, strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)
    shelf.clear()
    again = shelf.keep(torch.ones(3, 5))
    assert again.data_ptr() == kept[0].data_ptr()


@pytest.mark.parametrize("kind", ["no mask", "a window", "a mask over NaN", "a mask over numbers"])
def test_what_is_measured_is_never_changed(kind: str) -> None:
    tokens = tokens_of(kind, torch.float32)
    tokens.input_BND[:, 5] *= 100.0
    tokens.input_BND[..., 2] *= 100.0
    before = tokens.input_BND.clone()
    for block in blocks(tokens, Workspace()):
        find_confounds(block, measure(block))
    torch.testing.assert_close(tokens.input_BND, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", sorted(SUMS))
@pytest.mark.parametrize("kind", ["no mask", "a mask over NaN", "a mask over numbers"])
def test_a_sum_is_measured_alone_as_with_the_others(name: str, kind: str) -> None:
    tokens = tokens_of(kind, torch.float32)
    [block] = blocks(tokens, Workspace())
    torch.testing.assert_close(measure(block, frozenset({name}))[name], getattr(tokens, name), check_dtype=False)


def test_what_no_metric_reads_is_not_measured() -> None:
    tokens = Tokens(torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0)))
    [block] = blocks(tokens, Workspace())
    assert set(measure(block, frozenset({"unit_sum_BD"}))) == {"norms_BN", "inverse_norms_BN", "unit_sum_BD"}
