"""Bad input is told plainly, and what can still be said is said."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.explaining.seeing import encoder, found, set_values, streams
from unsmooth import UnsmoothError


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.empty(0, 5, 8), "at least one sequence"),
        (torch.empty(2, 0, 8), "two tokens or more"),
        ([], "at least one batch of data"),
        (streams(2, 1), "two tokens or more"),
        (7, "texts, images, arrays"),
    ],
)
def test_data_without_tokens_to_compare(data: Any, message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        found(encoder(), data)


@pytest.mark.parametrize("option", ["batch_size", "max_batches", "max_length", "spectral_sequences"])
def test_options_below_one(option: str) -> None:
    with pytest.raises(UnsmoothError, match=option):
        found(encoder(), streams(), **{option: 0})


def test_models_without_blocks() -> None:
    with pytest.raises(UnsmoothError, match="Transformer blocks"):
        found(nn.Linear(3, 3), torch.randn(2, 3))


def broken_in_the_middle() -> nn.TransformerEncoder:
    model = set_values(encoder(layers=3), 0.5)
    with torch.no_grad():
        model.layers[1].self_attn.in_proj_weight[2 * 8 + 4 :, 0] = float("nan")
    return model


def test_nan_weights_are_named_and_other_layers_explained() -> None:
    explanation = found(broken_in_the_middle())
    assert [layer.verdict for layer in explanation.layers] == ["smoothing", "undecided", "smoothing"]
    assert any("Layer 2" in note and "head 1" in note for note in explanation.notes)
    assert "head 1" in explanation.layers[1].reason
    assert {head.layer for head in explanation.heads} == {1, 3}


def test_nan_activations_are_never_a_measurement() -> None:
    explanation = found(broken_in_the_middle(), streams())
    first, second, third = explanation.layers
    assert first.measured is not None
    assert first.gains is not None
    assert math.isfinite(first.gains.rest)
    for layer in (second, third):
        assert layer.measured is None
        assert layer.similarity_after is None
        assert layer.escalation is None
        assert layer.breakdown is None
        assert layer.logit_change is None
        assert layer.predicted == {}
    assert third.verdict == "smoothing"
    assert explanation.notes[0] == (
        f"NaN or Inf activations first at layer 2 ({len(streams())}): from there on these sequences are left out."
    )
    assert explanation.growth is None
    assert any("stack" in note for note in explanation.notes)
    assert "whole stack" not in explanation.sentence
    assert "activations were NaN or Inf, so nothing measured is told" in explanation.sentence
    assert not re.search(r"rises over|foretells|outgrow", explanation.sentence)


def test_a_broken_sequence_does_not_touch_the_others() -> None:
    whole, torn = streams(), streams().clone()
    torn[1, 2] = float("nan")
    wanted, explanation = found(encoder(), whole[[0, *range(2, len(whole))]]), found(encoder(), torn)
    assert explanation.notes == (
        "NaN or Inf activations first at layer 0 (1): from there on these sequences are left out.",
    )
    for one, other in zip(explanation.layers, wanted.layers, strict=True):
        assert one.measured == pytest.approx(other.measured, abs=1e-6)
        assert dict(one.predicted) == pytest.approx(dict(other.predicted), abs=1e-5)
        assert one.rest_modulus == pytest.approx(other.rest_modulus, rel=1e-3)
        assert one.gains is not None
        assert math.isfinite(one.gains.rest)


class Mixer(nn.Module):
    """A block of no known family."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.features = nn.Linear(6, 6), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.features(self.tokens(x.mT).mT)


def test_blocks_by_pattern_are_measured_without_a_verdict() -> None:
    torch.manual_seed(0)
    explanation = found(nn.Sequential(Mixer(), Mixer()), streams(), blocks="*")
    assert explanation.heads == ()
    for layer in explanation.layers:
        assert layer.verdict == "undecided"
        assert layer.reason.startswith("No verdict")
        assert layer.place == "unknown"
        assert layer.breakdown is None
        assert layer.gains is not None
        assert layer.measured is not None
        assert layer.predicted["T4"] == pytest.approx(layer.logit_change, abs=1e-6)
        assert set(layer.predicted) == {"T0", "T1", "T2", "T4"}  # nobody knows the maps
    assert explanation.growth is not None
    assert any("No attention map" in note for note in explanation.notes)
    only_weights = found(nn.Sequential(Mixer(), Mixer()), blocks="*")
    assert [layer.verdict for layer in only_weights.layers] == ["undecided"] * 2
    assert len(only_weights.notes) == 2


def test_a_pattern_over_known_blocks_explains_those() -> None:
    model = nn.Module()
    model.first, model.second = encoder(), encoder(layers=3)
    assert [len(one.layers) for one in found(model).stacks] == [2, 3]
    assert len(found(model, blocks="second.layers.*").layers) == 3


def test_attention_whose_rows_do_not_sum_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from unsmooth.explaining import observe

    original = observe.watch_attention

    @contextmanager
    def gated(anatomy: Any, observer: Any, on_missing: Any = None) -> Iterator[None]:
        with original(anatomy, lambda layer, maps: observer(layer, maps * (0.9 if layer == 2 else 1.0)), on_missing):
            yield

    monkeypatch.setattr(observe, "watch_attention", gated)
    explanation = found(set_values(encoder(), 0.5), streams())
    (note,) = explanation.notes
    assert "layer 2" in note
    assert "0.1 away from summing to one" in note
    first, second = explanation.layers
    assert first.rest_modulus is not None
    assert second.rest_modulus is None
    assert second.verdict == "smoothing"
    assert "were attention to average all tokens" in second.reason
    assert "T3" in first.predicted
    assert "T3" not in second.predicted
    assert all(head.rest_modulus is None for head in explanation.heads if head.layer == 2)


def test_padding_that_is_looked_at_gives_no_spectrum() -> None:
    """Tokens called padding but not masked: their columns belong to every row's sum."""
    real = torch.tensor([[1, 1, 1, 1, 0, 0]] * 3)
    explanation = found(set_values(encoder(), 0.5), {"src": streams(), "token_mask": real})
    assert all("padding that is looked at" in note for note in explanation.notes)
    assert len(explanation.notes) == 2
    for layer in explanation.layers:
        assert layer.rest_modulus is None
        assert layer.verdict == "smoothing"
        assert layer.measured is not None


class TwoMaps(nn.MultiheadAttention):
    """Looks twice, as differential attention does."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        first = super().forward(*args, **kwargs)
        second = super().forward(*args, **kwargs)
        return (first[0] - 0.5 * second[0], None)


def test_layers_that_mix_in_two_ways_have_no_map() -> None:
    model = set_values(encoder(), 0.5)
    twice = TwoMaps(8, 2, batch_first=True)
    twice.load_state_dict(model.layers[1].self_attn.state_dict())
    model.layers[1].self_attn = twice
    explanation = found(model, streams())
    assert explanation.layers[0].rest_modulus is not None
    assert explanation.layers[1].rest_modulus is None
    assert any("more than one way" in note for note in explanation.notes)


def bert(**options: Any) -> Any:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    torch.manual_seed(0)
    return BertModel(BertConfig(vocab_size=40, initializer_range=0.3, **sizes, **options)).eval()


IDS = torch.randint(5, 40, (3, 6), generator=torch.Generator().manual_seed(0))


def test_cross_attention_does_not_pass_for_attention() -> None:
    """The maps and weights of a decoder are those of its self-attention, fed from elsewhere or not."""
    model = bert(is_decoder=True, add_cross_attention=True)
    memory = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(1))
    fed, alone = found(model, {"input_ids": IDS, "encoder_hidden_states": memory}), found(model, {"input_ids": IDS})
    assert len(fed.layers) == len(alone.layers) == 2
    assert fed.layers[0].rest_modulus == pytest.approx(alone.layers[0].rest_modulus, rel=1e-4)
    assert fed.layers[0].measured != pytest.approx(alone.layers[0].measured, abs=1e-4)
    for layer in fed.layers:
        assert layer.breakdown is not None
        assert layer.breakdown.total == pytest.approx(layer.measured, abs=1e-9)


def test_blocks_with_cross_attention_are_refused() -> None:
    with pytest.raises(UnsmoothError, match="torch_decoder blocks with cross-attention"):
        found(nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2))


def test_sizes_that_do_not_fit_leave_one_layer_out() -> None:
    """As pruned heads do, where a library still prunes them."""
    model = bert()
    model.encoder.layer[1].attention.output.dense = nn.Linear(8, 16)
    explanation = found(model)
    assert explanation.layers[0].verdict != "undecided"
    assert explanation.layers[1].verdict == "undecided"
    (note,) = explanation.notes
    assert note.startswith("Layer 2: Expected")
    assert "16x16 and 8x16" in note


class Opaque(Mixer):
    """Leaves torch on the way, as foreign kernels do."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.from_numpy(x.detach().numpy() * 1.0))


def test_blocks_that_cannot_be_differentiated_are_noted() -> None:
    torch.manual_seed(0)
    explanation = found(nn.Sequential(Opaque(), Mixer()), streams(), blocks="*")
    first, second = explanation.layers
    assert first.measured is not None
    assert first.gains is None
    assert second.gains is not None
    assert set(first.predicted) == set(second.predicted) == {"T0", "T1", "T2", "T4"}
    assert explanation.growth is None
    said = " ".join(explanation.notes)
    assert "The Jacobian of layer 1 could not be had" in said
    assert "Growth over the stack could not be had" in said
    assert all("\n" not in note for note in explanation.notes)
