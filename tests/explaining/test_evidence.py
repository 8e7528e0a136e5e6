"""What is measured: means over sequences of numbers that the metrics give too, whatever the batching and padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.explaining.seeing import BY_NAME, encoder, similarity, streams, tokens_of, view, view_of
from tests.functional.references import mean_cosine as reference_cosine
from tests.models.entry import Padding, real_tokens
from unsmooth import UnsmoothError, explain, functional
from unsmooth.explaining import TIERS, Explanation

CASES = [("bert-tiny", "right"), ("gpt2-tiny", "left"), ("torch_encoder-pre-batch-first", "right")]


@pytest.mark.parametrize(("name", "padding"), CASES)
def test_measured_against_definitions_and_metrics(name: str, padding: Padding) -> None:
    entry = BY_NAME[name]
    seen = view_of(entry, padding, torch.float32)
    found = explain(entry.model(), entry.batch(padding), progress=False, jacobian=False)
    for layer, view_of_layer in zip(found.layers, seen.layers, strict=True):
        x, y = view_of_layer.sites["input"], view_of_layer.sites["output"]
        before, after = tokens_of(x, seen.real_BN), tokens_of(y, seen.real_BN)
        assert layer.similarity_before == pytest.approx(np.mean([similarity(one) for one in before]), rel=1e-5)
        assert layer.similarity_after == pytest.approx(np.mean([similarity(one) for one in after]), rel=1e-5)
        assert layer.cosine_before == pytest.approx(np.mean([reference_cosine(one) for one in before]), abs=1e-5)
        assert layer.cosine_after == pytest.approx(np.mean([reference_cosine(one) for one in after]), abs=1e-5)
        assert layer.measured == pytest.approx(
            float((functional.token_similarity(y, seen.real_BN) - functional.token_similarity(x, seen.real_BN)).mean()),
            abs=1e-5,
        )
        rates = [1 - (1 - similarity(b)) / (1 - similarity(a)) for a, b in zip(before, after, strict=True)]
        assert layer.escalation == pytest.approx(np.mean(rates), rel=1e-4)
        metric = functional.escalation_rate(x, y, seen.real_BN)
        assert layer.escalation == pytest.approx(float(metric.mean()), rel=1e-4)
        assert layer.breakdown is not None
        assert layer.breakdown.total == pytest.approx(layer.measured, abs=1e-10)


def test_escalation_survives_near_collapse() -> None:
    """1 − t_sim near 1e-12 must not be what is left of a subtraction."""
    x = 1.0 + 1e-6 * streams(2, 5).double()
    model = encoder(layers=1).double()
    seen = view(model, x, None)
    found = explain(model, x, progress=False, jacobian=False).layers[0]
    rates = []
    for before, after in zip(x, seen.layers[0].sites["output"], strict=True):
        left = [float((one - one.mean(0)).square().sum() / one.square().sum()) for one in (before, after)]
        rates.append(1 - left[1] / left[0])
    assert found.escalation == pytest.approx(np.mean(rates), rel=1e-3)


def test_escalation_bound_is_that_of_random_weights() -> None:
    """s(1 − |λ₂|²)/2, with the mean over heads of |λ₂|."""
    found = explain(encoder(layers=1), streams(), progress=False, jacobian=False, spectral_sequences=3)
    (layer,) = found.layers
    seen = view(encoder(layers=1), streams(), None)
    maps = seen.layers[0].maps_BHNN
    assert maps is not None
    seconds = [np.sort(np.abs(np.linalg.eigvals(one.double().numpy())))[-2] for one in maps.flatten(0, 1)]
    assert layer.similarity_before is not None
    assert layer.escalation_bound == pytest.approx(layer.similarity_before * (1 - np.mean(seconds) ** 2) / 2, rel=1e-3)


def numbers(found: Explanation) -> dict[str, list[float | None]]:
    columns = ("similarity_before", "similarity_after", "cosine_after", "escalation", "scale", "drift")
    by_name: dict[str, list[float | None]] = {
        name: [getattr(layer, name) for layer in found.layers] for name in columns
    }
    for tier in TIERS:
        by_name[tier] = [layer.predicted.get(tier) for layer in found.layers]
    return by_name


def assert_same(one: Explanation, other: Explanation, names: set[str] | None = None) -> None:
    for name, wanted in numbers(one).items():
        if names is None or name in names:
            assert numbers(other)[name] == pytest.approx(wanted, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("batch_size", [1, 2])
def test_batching_does_not_matter(batch_size: int) -> None:
    entry = BY_NAME["bert-tiny"]
    whole, parts = (
        explain(entry.model(), entry.batch("right"), progress=False, jacobian=False, batch_size=size)
        for size in (3, batch_size)
    )
    assert_same(whole, parts)
    assert whole.manifest["data"]["sequences"] == parts.manifest["data"]["sequences"] == 3
    assert whole.manifest["data"]["tokens"] == parts.manifest["data"]["tokens"] == 12


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("name", ["bert-tiny", "torch_encoder-post-batch-first", "torch_encoder-pre-batch-first"])
def test_what_stands_in_padding_does_not_matter(name: str, padding: Padding) -> None:
    entry, real = BY_NAME[name], real_tokens(padding)
    found = []
    for garbage in (3.0, 30.0):
        batch = entry.batch(padding)
        key = "src" if "src" in batch else "input_ids"
        filler = torch.full_like(batch[key], garbage)
        batch[key] = torch.where(real if key == "input_ids" else real.unsqueeze(-1), batch[key], filler)
        found.append(explain(entry.model(), batch, progress=False))
    assert_same(found[0], found[1])
    for one, other in zip(found[0].layers, found[1].layers, strict=True):
        assert one.gains is not None
        assert other.gains is not None
        assert vars(other.gains) == pytest.approx(vars(one.gains), rel=1e-3, abs=1e-4)
        assert other.mean_modulus == pytest.approx(one.mean_modulus, rel=1e-4)
        assert other.rest_modulus == pytest.approx(one.rest_modulus, rel=1e-3)
    assert found[0].growth is not None
    assert found[1].growth is not None
    assert found[1].growth.margin == pytest.approx(found[0].growth.margin, abs=1e-3)


def test_padding_itself_does_not_matter() -> None:
    """Each sequence alone, cut to its length, gives what the padded batch gives."""
    entry = BY_NAME["bert-tiny"]
    batch, real = entry.batch("right"), real_tokens("right")
    alone = [{"input_ids": ids[mask][None]} for ids, mask in zip(batch["input_ids"], real, strict=True)]
    padded = explain(entry.model(), batch, progress=False, jacobian=False)
    assert_same(padded, explain(entry.model(), alone, progress=False, jacobian=False))


def lengths_mask(*lengths: int) -> Tensor:
    return torch.arange(6)[None] < torch.tensor(lengths)[:, None]


def test_single_tokens_are_left_out_and_noted() -> None:
    entry = BY_NAME["bert-tiny"]
    model, batch = entry.model(), entry.batch("none")
    mixed = {"input_ids": batch["input_ids"], "attention_mask": lengths_mask(6, 1, 4).long()}
    kept = {name: value[[0, 2]] for name, value in mixed.items()}
    found, wanted = (explain(model, data, progress=False) for data in (mixed, kept))
    assert_same(wanted, found, {"similarity_before", "similarity_after", "escalation", "T1", "T2", "T4"})
    assert any("1 sequences of a single token were left out" in note for note in found.notes)
    assert not any("single token" in note for note in wanted.notes)
    assert found.manifest["data"]["sequences"] == 2
    for one, other in zip(found.layers, wanted.layers, strict=True):
        assert one.gains is not None
        assert other.gains is not None
        # Other sequences have another random start.
        assert one.gains.rest == pytest.approx(other.gains.rest, rel=0.3)
        assert one.gains.collapsed_rest == pytest.approx(other.gains.collapsed_rest, rel=0.3)


def test_jacobians_wait_for_a_batch_with_differences() -> None:
    model = encoder()
    found = explain(model, [streams(2, 1), streams(2, 5)], progress=False)
    assert all(layer.gains is not None and layer.gains.rest > 0 for layer in found.layers)
    assert found.growth is not None
    assert np.isfinite(found.growth.margin)


def test_only_single_tokens_is_an_error() -> None:
    with pytest.raises(UnsmoothError, match="two tokens or more but got 3 shorter ones"):
        explain(encoder(), streams(3, 1), progress=False)


def test_max_batches_stops() -> None:
    found = explain(encoder(), streams(6), batch_size=1, max_batches=2, progress=False, jacobian=False)
    assert found.manifest["data"]["sequences"] == 2
    assert_same(explain(encoder(), streams(6)[:2], progress=False, jacobian=False), found)


class Growing(nn.Module):
    """Runs more blocks at its second call."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.calls = encoder(layers=3).layers, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        for layer in self.layers[: 1 + self.calls]:
            x = layer(x)
        return x


def test_depth_that_changes_is_an_error() -> None:
    with pytest.raises(UnsmoothError, match="Expected 2 layers as in the first batch but got 3"):
        explain(Growing(), streams(), batch_size=1, progress=False, jacobian=False)
