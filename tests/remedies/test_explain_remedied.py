"""Scans and explanations of remedied models: weights as they act, baselines that keep the remedy, honest verdicts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

import unsmooth
from unsmooth import remedies
from unsmooth.explaining.observe import observe
from unsmooth.models import find_anatomy, value_projection, weight_hash, with_random_weights

SIZES = {"vocab_size": 30, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
IDS = torch.randint(0, 30, (3, 7), generator=torch.Generator().manual_seed(5))


def bert() -> nn.Module:
    torch.manual_seed(7)
    return BertModel(BertConfig(**SIZES, initializer_range=0.2)).eval()


def gpt2() -> nn.Module:
    torch.manual_seed(7)
    config = GPT2Config(vocab_size=30, n_positions=16, n_embd=32, n_layer=3, n_head=4, initializer_range=0.2)
    return GPT2Model(config).eval()


def llama() -> nn.Module:
    torch.manual_seed(7)
    return LlamaModel(LlamaConfig(**SIZES, num_key_value_heads=2, initializer_range=0.2)).eval()


def stack() -> nn.Module:
    torch.manual_seed(7)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()


HOSTS: dict[str, Any] = {"bert": bert, "gpt2": gpt2, "llama": llama, "torch": stack}
DATA = {"torch": torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(5))}
each_host = pytest.mark.parametrize("host", HOSTS)


def explained(model: nn.Module, host: str, **options: Any) -> unsmooth.Explanation:
    return unsmooth.explain(model, DATA.get(host, IDS), progress=False, **options)


def said(model: nn.Module, host: str) -> Tensor:
    with torch.no_grad():
        out = model(DATA.get(host, IDS))
    return out if isinstance(out, Tensor) else out[0]


# Weights as they act.


@each_host
def test_scaled_branches_scale_h(host: str) -> None:
    model = HOSTS[host]()
    before = value_projection(model, 1)
    after = value_projection(unsmooth.apply(model, "residual_scaling", scale=0.25), 1)
    torch.testing.assert_close(after.summed(), 0.25 * before.summed())
    assert after.unseen == ()


@each_host
def test_computed_weights_are_read(host: str) -> None:
    values = value_projection(unsmooth.apply(HOSTS[host](), "sharpen", basis="gram"), 2)
    eigenvalues = torch.linalg.eigvals(values.summed().double())
    assert eigenvalues.imag.abs().max() < 1e-4
    assert eigenvalues.real.min() >= -1.0 - 1e-4
    assert eigenvalues.real.max() <= 1e-4


@each_host
@pytest.mark.parametrize("name", ["sharpen", "residual_scaling", "rezero"])
def test_attention_is_rebuilt_from_weights_as_they_act(host: str, name: str) -> None:
    model = unsmooth.apply(HOSTS[host](), name)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if ".unsmooth." in key:
                parameter.add_(0.3)
    found = explained(model, host, jacobian=False)
    assert all(layer.rebuilt is not None and layer.rebuilt < 1e-5 for layer in found.layers)
    assert found.notes == ()


def test_explaining_folded_weights_says_the_same() -> None:
    kept = unsmooth.apply(unsmooth.apply(gpt2(), "sharpen"), "residual_scaling", scale=0.5)
    ones, others = explained(kept, "gpt2").layers, explained(unsmooth.fold(copy.deepcopy(kept)), "gpt2").layers
    for one, other in zip(ones, others, strict=True):
        assert one.verdict == other.verdict
        assert one.margin == pytest.approx(other.margin, abs=1e-4)
        assert one.reason == other.reason
        assert one.measured == pytest.approx(other.measured, abs=1e-5)


# What no weight shows.


@pytest.mark.parametrize("place", ["attention", "values", "residual", "norm"])
def test_a_verdict_names_the_remedy_that_it_leaves_out(place: str) -> None:
    found = explained(unsmooth.apply(bert(), "deescalate", place=place, layers=[1]), "bert", jacobian=False)
    assert ["deescalate" in layer.reason for layer in found.layers] == [False, True, False]
    # In front of attention or behind the addition it leaves the branch what weights and map give.
    told = [note for note in found.notes if "deescalate does to attention is in no weight" in note]
    assert len(told) == (1 if place in ("attention", "values") else 0)
    assert found.layers[0].rebuilt < 1e-5


@each_host
@pytest.mark.parametrize("name", ["attnscale", "neutreno"])
def test_remedies_on_heads_fall_back_with_a_reason(host: str, name: str) -> None:
    model = unsmooth.apply(HOSTS[host](), name)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if ".unsmooth." in key:
                parameter.add_(0.3)
    found = explained(model, host, jacobian=False)
    assert [note for note in found.notes if name in note] == list(found.notes)
    assert len(found.notes) == 1
    assert found.layers[2].rebuilt > 1e-3
    assert all(name in layer.reason for layer in found.layers)


@pytest.mark.parametrize("name", ["neutreno", "contranorm", "sharpen", "deescalate"])
@each_host
def test_a_block_run_again_does_what_it_did(host: str, name: str) -> None:
    model = unsmooth.apply(HOSTS[host](), name)
    data = DATA.get(host, IDS)
    inputs: Any = data if host == "torch" else {"input_ids": data, "use_cache": False}
    with torch.no_grad():
        view = observe(find_anatomy(model), inputs, None)
        elsewhere = [layer.rerun(2.0 * layer.sites["input"]) for layer in view.layers]
        for layer, other in zip(view.layers, elsewhere, strict=True):
            again = layer.rerun(layer.sites["input"])
            torch.testing.assert_close(again, layer.sites["output"], rtol=1e-5, atol=1e-5)
            assert not torch.allclose(again, other)


def test_jacobians_of_what_blocks_hand_each_other() -> None:
    found = explained(unsmooth.apply(gpt2(), "neutreno"), "gpt2")
    assert not any("could not" in note for note in found.notes)
    assert found.growth is not None
    # A block that runs again has what earlier ones handed on, so it does again what it did.
    for layer in found.layers:
        assert layer.predicted["T4"] == pytest.approx(layer.logit_change, abs=1e-4)


# Random weights under a remedy.


@pytest.mark.parametrize("host", ["bert", "gpt2", "llama"])
def test_random_weights_are_those_of_the_plain_model(host: str) -> None:
    model = HOSTS[host]()
    plain = with_random_weights(model, seed=3).state_dict()
    unsmooth.apply(model, "deescalate", learn="channel", tau=0.5)
    fresh = with_random_weights(model, seed=3)
    found = fresh.state_dict()
    assert all(torch.equal(found[key], value) for key, value in plain.items())
    assert [tau.unique().tolist() for key, tau in fresh.named_parameters() if key not in plain] == [[0.5]] * 3
    assert remedies.applied(fresh)[0].options == remedies.applied(model)[0].options


@each_host
def test_the_baseline_keeps_the_remedy(host: str) -> None:
    """With τ=1 and the whole mean, what attention adds has no token mean left: t_sim 0, whatever the weights are."""
    leaks = {"mean": "all", "allow_leak": True} if host in ("gpt2", "llama") else {}
    model = HOSTS[host]()
    options: dict[str, Any] = {"metrics": ["token_similarity"], "sites": ["attention"], "baseline": True}
    options |= {"progress": False, "tokens": "all"}
    without = unsmooth.scan(model, DATA.get(host, IDS), **options)
    if leaks:
        with pytest.warns(UserWarning, match="leak"):
            unsmooth.apply(model, "deescalate", first="remove", **leaks)
    else:
        unsmooth.apply(model, "deescalate", first="remove")
    found = unsmooth.scan(model, DATA.get(host, IDS), **options)
    for scan, low, high in ((without, 1e-3, 1.0), (found, 0.0, 1e-9)):
        assert scan.baseline is not None
        for row in (*scan.rows, *scan.baseline.rows):
            assert low <= row.mean <= high
    assert found.baseline.manifest["model"]["remedies"] == found.manifest["model"]["remedies"]


@each_host
@pytest.mark.parametrize("basis", ["gram", "orthogonal"])
def test_random_weights_are_projected_anew(host: str, basis: str) -> None:
    model = unsmooth.apply(HOSTS[host](), "sharpen", basis=basis)
    fresh = with_random_weights(model, seed=3)
    assert not torch.equal(value_projection(fresh, 0).w_v, value_projection(model, 0).w_v)
    eigenvalues = torch.linalg.eigvals(value_projection(fresh, 0).summed().double()).real
    assert eigenvalues.min() >= -1.0 - 1e-3
    assert eigenvalues.max() <= 1e-3
    assert torch.equal(said(fresh, host), said(with_random_weights(model, seed=3), host))


@each_host
@pytest.mark.parametrize("basis", ["gram", "orthogonal", "general"])
def test_what_a_remedy_drew_is_drawn_anew(host: str, basis: str) -> None:
    """A fresh start has all eigenvalues of H at half the limit, and columns that no weight of the model decides."""
    model = unsmooth.apply(HOSTS[host](), "sharpen", basis=basis, start="fresh", size=0.5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    one, same, other = (with_random_weights(model, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(said(one, host), said(same, host))
    assert not torch.allclose(said(one, host), said(other, host), atol=1e-3)
    values = value_projection(one, 1)
    eigenvalues = torch.linalg.eigvals(values.summed().double()).real
    among = values.heads * values.head_dim if host != "llama" else 2 * values.head_dim
    drawn = eigenvalues.sort().values[:among]
    torch.testing.assert_close(drawn, torch.full_like(drawn, -0.5), rtol=0, atol=1e-3)
    assert not torch.allclose(values.w_v, value_projection(model, 1).w_v, atol=1e-2)


# Who is who.


def test_hashes_tell_remedies_apart() -> None:
    plain = bert()
    hashes = [weight_hash(plain)]
    for options in ({"tau": 0.5}, {"tau": 0.25}, {"tau": 0.25, "layers": [0]}, {"tau": 0.25, "learn": "layer"}):
        model = unsmooth.apply(copy.deepcopy(plain), "deescalate", **options)
        hashes.append(weight_hash(model))
        assert weight_hash(copy.deepcopy(model)) == hashes[-1]
        assert weight_hash(unsmooth.undo(model)) == hashes[0]
    assert len(set(hashes)) == 5


def test_manifests_tell_what_was_applied() -> None:
    model = unsmooth.apply(bert(), "deescalate", tau=0.5, layers=[0, 2])
    unsmooth.apply(model, "residual_scaling", scale=0.5, layers=[1])
    scanned = unsmooth.scan(model, IDS, progress=False).manifest["model"]["remedies"]
    assert [(one["name"], one["layers"]) for one in scanned] == [("deescalate", [0, 2]), ("residual_scaling", [1])]
    assert scanned[0]["options"]["tau"] == 0.5
    assert scanned[1]["options"] == {"scale": 0.5}
    assert explained(model, "bert", jacobian=False).manifest["model"]["remedies"] == scanned
    assert unsmooth.scan(bert(), IDS, progress=False).manifest["model"]["remedies"] == []
