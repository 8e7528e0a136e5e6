"""`explain` as a user meets it: every family, nothing changed behind the user's back, and bad input told plainly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.explaining.seeing import BY_NAME, encoder, set_values, streams
from tests.explaining.test_observe import hooks
from tests.models.entries import ENTRIES
from tests.models.entry import Entry
from unsmooth import UnsmoothError, explain
from unsmooth.explaining import RULES, Explanation


def found(model: nn.Module | str, data: Any = None, **options: Any) -> Explanation:
    return explain(model, data, progress=False, **options)


def numbers(value: Any) -> Iterator[float]:
    """Every number of a finding, however deep."""
    if isinstance(value, complex):
        yield from (value.real, value.imag)
    elif isinstance(value, float):
        yield value
    elif isinstance(value, dict):
        yield from numbers(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from numbers(asdict(item) if is_dataclass(item) else item)  # type: ignore[arg-type]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_family_is_explained_whole(entry: Entry) -> None:
    batch = entry.batch(entry.paddings[0])
    explanation = found(entry.model(), [batch])
    assert explanation.notes == ()
    assert len(explanation.layers) == entry.calls
    for layer in explanation.layers:
        assert layer.place == ("post" if entry.style == "post" else "pre")
        assert set(layer.predicted) == set(RULES)
        assert layer.gains is not None
        assert layer.breakdown is not None
        assert layer.rest_modulus is not None
        assert layer.eigenvalues
    values = list(numbers((*explanation.layers, *explanation.heads)))
    assert len(values) > 50
    assert not any(map(math.isnan, values))
    assert explanation.stack is not None
    assert math.isfinite(explanation.stack.margin)
    assert {score.layers for score in explanation.scores} == {entry.calls}
    without = found(entry.model())
    assert all(layer.verdict in ("smoothing", "sharpening", "preserving", "undecided") for layer in without.layers)
    assert not any(math.isnan(layer.margin) for layer in without.layers)
    # A block that is called several times is one block to weights, and several layers to data.
    assert len(without.layers) == len({layer.block for layer in explanation.layers})


def test_nothing_is_changed() -> None:
    entry = BY_NAME["gpt2-tiny"]
    model = entry.model().train()
    model.h[1].eval()
    model.config.use_cache = True
    batch = entry.batch("right")
    kept = {name: value.clone() for name, value in batch.items()}
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    torch.manual_seed(11)
    chance = torch.get_rng_state()
    grad = torch.is_grad_enabled()
    first = found(model, batch)
    assert torch.equal(torch.get_rng_state(), chance)
    assert torch.is_grad_enabled() == grad
    assert all(torch.equal(batch[name], value) for name, value in kept.items())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.config.use_cache is True
    assert hooks(model) == 0
    assert repr(found(model, batch).layers) == repr(first.layers), "the same question has the same answer"


def test_dropout_plays_no_part() -> None:
    model = encoder(dropout=0.5)
    assert repr(found(model.train(), streams()).layers) == repr(found(model.eval(), streams()).layers)


def test_everything_is_put_back_after_an_error() -> None:
    model = encoder().train()

    def fail(module: nn.Module, args: object) -> None:
        raise ValueError("boom")

    handle = model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match="boom"):
        found(model, streams())
    handle.remove()
    assert hooks(model) == 0
    assert all(module.training for module in model.modules())
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_device_is_where_it_is_moved_and_back() -> None:
    model, places = encoder(), []
    handle = model.register_forward_pre_hook(lambda module, args: places.append(args[0].device.type))
    assert repr(found(model, streams(), device="cpu").layers) == repr(found(model, streams()).layers)
    handle.remove()
    assert set(places) == {"cpu"}
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    "name", ["bert-tiny", "gpt2-tiny", "gemma-gemma2", "bloom-tiny", "torch_encoder-pre-batch-first"]
)
def test_a_gpu_says_what_the_cpu_says(name: str) -> None:
    entry = BY_NAME[name]
    model, batch = entry.model(), entry.batch("right")
    here, there = found(model, batch), found(model, batch, device="cuda")
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert there.notes == here.notes == ()
    for one, other in zip(here.layers, there.layers, strict=True):
        assert other.measured == pytest.approx(one.measured, abs=1e-4)
        assert other.mean_modulus == pytest.approx(one.mean_modulus, rel=1e-3)
        assert other.rest_modulus == pytest.approx(one.rest_modulus, rel=1e-2)
        assert dict(other.predicted) == pytest.approx(dict(one.predicted), abs=1e-2)
        assert one.gains is not None
        assert other.gains is not None
        assert vars(other.gains) == pytest.approx(vars(one.gains), rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_say_the_same(dtype: torch.dtype) -> None:
    model = set_values(encoder(), 0.5)
    wanted = found(model, streams())
    other = found(model.to(dtype), streams().to(dtype))
    assert other.notes == ()
    for one, two in zip(wanted.layers, other.layers, strict=True):
        assert two.verdict == one.verdict
        assert two.measured == pytest.approx(one.measured, abs=0.01)
        assert two.mean_modulus == pytest.approx(one.mean_modulus, rel=0.02)
        assert one.gains is not None
        assert two.gains is not None
        # In float64 the random start is another one.
        assert two.gains.mean == pytest.approx(one.gains.mean, rel=0.15)
        assert two.gains.rest == pytest.approx(one.gains.rest, rel=0.15)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.empty(0, 5, 8), "at least one sequence"),
        (torch.empty(2, 0, 8), "two tokens or more"),
        ([], "two tokens or more"),
        (streams(2, 1), "two tokens or more"),
        (7, "texts, images, a tensor"),
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
        assert set(layer.predicted) <= {"eigenvalue"}
    assert third.verdict == "smoothing"
    assert any("layer 3" in note and "NaN" in note for note in explanation.notes)
    assert explanation.stack is None
    assert any("stack" in note for note in explanation.notes)
    assert "whole stack" not in explanation.sentence
    assert "rises over 1 and falls over 0" in explanation.sentence or "falls over 1" in explanation.sentence


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
        assert layer.predicted["jacobian"] == pytest.approx(layer.measured, abs=1e-6)
    assert explanation.stack is not None
    assert any("No attention map" in note for note in explanation.notes)
    only_weights = found(nn.Sequential(Mixer(), Mixer()), blocks="*")
    assert [layer.verdict for layer in only_weights.layers] == ["undecided"] * 2
    assert len(only_weights.notes) == 2


def test_a_pattern_over_known_blocks_explains_those() -> None:
    model = nn.Module()
    model.first, model.second = encoder(), encoder(layers=3)
    with pytest.raises(UnsmoothError, match="one stack"):
        found(model)
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
    assert "dominance" not in second.predicted
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
    assert fed.layers[0].predicted["attention"] == pytest.approx(alone.layers[0].predicted["attention"], abs=1e-6)
    assert fed.layers[0].measured != pytest.approx(alone.layers[0].measured, abs=1e-4)
    for layer in fed.layers:
        assert layer.breakdown is not None
        assert layer.breakdown.total == pytest.approx(layer.measured, abs=1e-9)


def test_decoders_of_another_family_are_refused() -> None:
    with pytest.raises(UnsmoothError, match="Transformer blocks"):
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
    assert "(8, 16)" in note


def nilpotent(rank: int) -> Tensor:
    matrix = torch.zeros(8, 8)
    for row in range(rank):
        matrix[row, row + 1] = 2.0
    return matrix


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("matrix", [nilpotent(1), nilpotent(7), torch.zeros(8, 8), torch.ones(8, 8)])
def test_singular_and_defective_weights_have_finite_answers(matrix: Tensor, norm_first: bool) -> None:
    model = set_values(encoder(norm_first=norm_first), matrix)
    for data in (None, streams()):
        explanation = found(model, data)
        for one in (*explanation.layers, *explanation.heads):
            assert math.isfinite(one.mean_modulus)
            assert math.isfinite(one.margin)
            assert one.flip_scale is None or math.isfinite(one.flip_scale)
        for head in explanation.heads:
            assert not math.isnan(head.condition)
            assert math.isfinite(head.asymmetry)
        assert all(math.isfinite(value.real) for layer in explanation.layers for value in layer.eigenvalues)


def test_a_nilpotent_h_grows_nothing() -> None:
    """All eigenvalues of 1 + H are 1 then, whatever its size; the numerical range tells of the size."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=40,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=4,
        intermediate_size=8,
    )
    model = LlamaModel(config).eval()
    with torch.no_grad():
        model.layers[0].self_attn.v_proj.weight.copy_(torch.eye(8))
        model.layers[0].self_attn.o_proj.weight.copy_(nilpotent(1).mT * 50.0)
    explanation = found(model)
    (layer,) = explanation.layers
    assert layer.verdict == "preserving"
    assert layer.mean_modulus == pytest.approx(1.0, abs=1e-6)
    assert explanation.heads[0].range_high == pytest.approx(50.0, rel=1e-5)


def test_equal_tokens_stay_equal_and_are_said_to() -> None:
    x = torch.arange(8.0).expand(2, 5, 8)
    explanation = found(encoder(layers=1), x)
    (layer,) = explanation.layers
    assert layer.similarity_before == pytest.approx(1.0)
    assert layer.similarity_after == pytest.approx(1.0)
    assert layer.escalation == pytest.approx(0.0, abs=1e-6)
    assert not any(map(math.isnan, numbers((*explanation.layers, *explanation.heads))))


def test_texts_and_a_name_for_the_model(bert_folder: Any, texts: list[str]) -> None:
    explanation = found(str(bert_folder), texts, max_batches=1, name="tiny")
    assert explanation.name == "tiny"
    assert explanation.sentence.startswith("tiny: of 3 layers")
    assert explanation.manifest["data"]["sequences"] == 4
    assert len(explanation.heads) == 12


def test_jacobians_only_where_asked_for() -> None:
    explanation = found(encoder(), streams(), jacobian=False)
    assert all(layer.gains is None for layer in explanation.layers)
    assert explanation.stack is None


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
    assert first.predicted == {}
    assert second.gains is not None
    assert set(second.predicted) == {"collapse", "jacobian"}
    assert explanation.stack is None
    said = " ".join(explanation.notes)
    assert "The Jacobian of layer 1 could not be had" in said
    assert "Rule collapse could not be applied at layer 1" in said
    assert "Growth over the stack could not be had" in said
    assert all("\n" not in note for note in explanation.notes)
