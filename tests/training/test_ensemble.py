"""An ensemble against its members trained one by one, by a loop written plainly with torch's own optimiser."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from unsmooth.errors import UnsmoothError
from unsmooth.networks import Decoder, DecoderConfig, ViT, ViTConfig
from unsmooth.training.ensemble import Alone, Batches, Ensemble, warm_cosine

STEPS, BATCH, WARMUP = 6, 8, 2
FAMILIES: Mapping[str, tuple[str, Mapping[str, Mapping[str, Any]]]] = {
    "pre": ("pre", {}),
    "post": ("post", {}),
    "peri": ("peri", {}),
    "parallel": ("parallel", {}),
    "deescalate": ("post", {"deescalate": {}}),
    "deescalate values": ("post", {"deescalate": {"place": "values", "tau": 0.5}}),
    "deescalate residual": ("post", {"deescalate": {"place": "residual"}}),
    "deescalate norm": ("post", {"deescalate": {"place": "norm"}}),
    "b2t": ("post", {"b2t": {}}),
    "deepnorm": ("post", {"deepnorm": {"variant": "official"}}),
    "residual_scaling": ("post", {"residual_scaling": {}}),
    "rezero": ("post", {"rezero": {}}),
    "rezero apart": ("pre", {"rezero": {"share": False, "norm": "keep", "start": 0.3}}),
}
# Which of two networks a member starts from, and its rate.
MEMBERS = ((0, 1e-3), (1, 3e-3), (0, 1e-2))
IMAGES, LABELS = torch.randn(50, 3, 16, 16, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 10
ORDER_SMB = torch.randint(50, (STEPS, len(MEMBERS), BATCH), generator=torch.Generator().manual_seed(1))
RATES_SM = warm_cosine(STEPS, WARMUP, [rate for _, rate in MEMBERS])


def vits(norm: str, remedies: Mapping[str, Mapping[str, Any]], dtype: torch.dtype = torch.float64) -> list[nn.Module]:
    config = ViTConfig(depth=3, dim=16, heads=2, hidden=32, image=16, patch=8, norm=norm, classes=10, init="xavier")
    networks: list[nn.Module] = [ViT(config, seed).to(dtype) for seed in (0, 1)]
    for network in networks:
        for name, options in remedies.items():
            unsmooth.apply(network, name, **options)
    return networks


def batches_of(inputs: Tensor, labels: Tensor) -> Batches:
    order = ORDER_SMB.to(inputs.device)

    def batches(at: Tensor) -> tuple[Tensor, Tensor]:
        chosen = order.index_select(0, at)[0]
        return inputs[chosen], labels[chosen]

    return batches


def trained_alone(network: nn.Module, place: int, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, nn.Module]:
    network = copy.deepcopy(network)
    matrices = [one for one in network.parameters() if one.ndim > 1]
    vectors = [one for one in network.parameters() if one.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW([group for group in groups if group["params"]])
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimiser.param_groups:
            group["lr"] = RATES_SM[step, place].item()
        chosen = ORDER_SMB[step, place]
        out = network(inputs[chosen])
        logits = out[0] if isinstance(out, tuple) else out
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels[chosen].flatten())
        optimiser.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(network.parameters(), 1.0).item())
        optimiser.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64), torch.tensor(norms, dtype=torch.float64), network


def check(networks: list[nn.Module], inputs: Tensor, labels: Tensor) -> None:
    ensemble = Ensemble(networks, [network for network, _ in MEMBERS], dtype=torch.float64)
    losses, norms = ensemble.train(batches_of(inputs, labels), RATES_SM)
    for place, (network, _) in enumerate(MEMBERS):
        wanted_losses, wanted_norms, alone = trained_alone(networks[network], place, inputs, labels)
        assert (losses[:, place] - wanted_losses).abs().max() < 1e-9
        assert (norms[:, place] - wanted_norms).abs().max() < 1e-9
        for name, parameter in alone.named_parameters():
            assert (ensemble.member(place)[name] - parameter).abs().max() < 1e-9, name


@pytest.mark.parametrize("family", FAMILIES)
def test_members_are_networks_trained_alone(family: str) -> None:
    check(vits(*FAMILIES[family]), IMAGES.double(), LABELS)


@pytest.mark.parametrize("remedies", [{}, {"sharpen": {"basis": "gram"}}, {"smooth": {"basis": "general"}}])
def test_a_network_by_itself(remedies: Mapping[str, Mapping[str, Any]]) -> None:
    network = vits("pre", remedies)[0]
    alone, chosen = Alone(network, dtype=torch.float64), ORDER_SMB[:, :1]
    with alone.restored():
        alone.train(lambda at: (IMAGES.double()[chosen[at[0]]], LABELS[chosen[at[0]]]), RATES_SM[:, :1] * 10)
    losses, _ = alone.train(lambda at: (IMAGES.double()[chosen[at[0]]], LABELS[chosen[at[0]]]), RATES_SM[:, :1])
    wanted, _, trained = trained_alone(network, 0, IMAGES.double(), LABELS)
    assert (losses[:, 0] - wanted).abs().max() < 1e-9
    for name, parameter in trained.named_parameters():
        assert (alone.member(0)[name] - parameter).abs().max() < 1e-9, name


def test_rates_of_parameters() -> None:
    batches = batches_of(IMAGES.double(), LABELS)
    still, slow, plain = (Ensemble(vits("post", {}), [0, 1, 0], dtype=torch.float64) for _ in range(3))
    still.scale_rates({name: float(name.startswith("head")) for name in still.names})
    slow.scale_rates(dict.fromkeys(slow.names, 0.5))
    before = still.member(1)
    still.train(batches, RATES_SM)
    moved = {name for name, value in still.member(1).items() if not torch.equal(value, before[name])}
    assert moved == {"head.weight", "head.bias"}
    slow.train(batches, RATES_SM)
    plain.train(batches, RATES_SM / 2)
    assert (slow.weights - plain.weights).abs().max() < 1e-12


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("remedy", ["", "deescalate"])
def test_decoders_that_are_members(tied: bool, remedy: str) -> None:
    sizes: dict[str, Any] = {"depth": 2, "dim": 16, "heads": 2, "hidden": 32, "vocabulary": 12, "length": 9}
    config = DecoderConfig(**sizes, positions="sinusoidal", tied=tied, norm="post", init="xavier")
    networks: list[nn.Module] = [Decoder(config, seed).double() for seed in (0, 1)]
    for network in networks if remedy else []:
        unsmooth.apply(network, remedy)
    text = torch.randint(12, (50, 10), generator=torch.Generator().manual_seed(2))
    check(networks, text[:, :-1], text[:, 1:])


def test_a_member_that_diverges_harms_no_other() -> None:
    networks = vits("post", {})
    rates = RATES_SM.clone()
    rates[:, 1] = float("nan")
    alone, _ = Ensemble(networks, [0, 1, 0], dtype=torch.float64).train(batches_of(IMAGES.double(), LABELS), RATES_SM)
    beside, _ = Ensemble(networks, [0, 1, 0], dtype=torch.float64).train(batches_of(IMAGES.double(), LABELS), rates)
    assert beside[1:, 1].isnan().all()
    assert torch.equal(beside[:, [0, 2]], alone[:, [0, 2]])


def test_going_on_is_going_through() -> None:
    batches = batches_of(IMAGES.double(), LABELS)
    whole, parts = (Ensemble(vits("pre", {}), [0, 1, 0], dtype=torch.float64) for _ in range(2))
    whole.train(batches, RATES_SM)
    parts.train(batches, RATES_SM[:2])
    parts.train(batches, RATES_SM, first=2)
    assert torch.equal(whole.weights, parts.weights)


def test_what_was_restored_is_as_it_was() -> None:
    ensemble = Ensemble(vits("pre", {}), [0, 1, 0], dtype=torch.float64)
    before = ensemble.weights.clone()
    with ensemble.restored():
        ensemble.train(batches_of(IMAGES.double(), LABELS), RATES_SM)
        assert not torch.equal(ensemble.weights, before)
    assert torch.equal(ensemble.weights, before)
    assert not ensemble.mean.any()


def test_parameters_of_an_unknown_kind_are_refused() -> None:
    networks = vits("pre", {"layerscale": {}})
    with pytest.raises(
        UnsmoothError, match=r"Expected parameters that an ensemble can stack .* but got 'stack\.blocks\.0"
    ):
        Ensemble(networks)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
def test_captured_steps_are_those_that_are_not(family: str) -> None:
    networks, told = vits(*FAMILIES[family], dtype=torch.float32), list[str]()
    batches = batches_of(IMAGES.cuda(), LABELS.cuda())
    captured, eager = (Ensemble(networks, [0, 1, 0], "cuda") for _ in range(2))
    losses, _ = captured.train(batches, RATES_SM, tell=told.append)
    wanted, _ = eager.train(batches, RATES_SM, capture=False)
    assert not told
    assert (losses - wanted).abs().max() < 1e-4
