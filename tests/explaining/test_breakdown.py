"""The parts of a layer's change sum to it, and each part is what its name says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.explaining.seeing import CASE_NAMES, CASES, encoder, similarity, streams, tokens_of, view, view_of
from tests.models.entry import Entry, Padding
from unsmooth.explaining.breakdown import PARTS, break_down
from unsmooth.explaining.jacobian import Split

each_case = pytest.mark.parametrize(("entry", "padding"), CASES, ids=CASE_NAMES)


@each_case
def test_parts_sum_to_the_measured_change(entry: Entry, padding: Padding) -> None:
    seen = view_of(entry, padding, torch.float32)
    for layer in seen.layers:
        found = break_down(layer.sites, Split(seen.real_BN))
        assert found is not None
        assert tuple(found) == PARTS
        total = sum(found.values())
        before, after = (tokens_of(layer.sites[site], seen.real_BN) for site in ("input", "output"))
        for index, (entering, leaving) in enumerate(zip(before, after, strict=True)):
            measured = similarity(leaving) - similarity(entering)
            assert float(total[index]) == pytest.approx(measured, abs=1e-10)


@each_case
def test_norms_count_where_they_stand_on_the_stream(entry: Entry, padding: Padding) -> None:
    seen = view_of(entry, padding, torch.float32)
    norms = []
    for layer in seen.layers:
        found = break_down(layer.sites, Split(seen.real_BN))
        assert found is not None
        norms.append(float(found["norm"].abs().max()))
    assert (max(norms) > 1e-3) if entry.style == "post" else (max(norms) < 1e-6)


def sites(**tensors: Tensor) -> dict[str, Tensor]:
    names = ("input", "attention", "mlp", "output")
    return {name: tensors.get(name, torch.zeros(1, 2, 2)) for name in names} | {
        name: tensor for name, tensor in tensors.items() if name not in names
    }


def test_by_hand() -> None:
    """Tokens (1, 1), (1, −1): t_sim 1/2. The branch pushes by (1, 0) and pulls (0, ±1) apart."""
    x = torch.tensor([[[1.0, 1.0], [1.0, -1.0]]])
    branch = torch.tensor([[[1.0, 1.0], [1.0, -1.0]]])
    found = break_down(sites(input=x, attention=branch, output=2 * x), Split(torch.ones(1, 2, dtype=torch.bool)))
    assert found is not None
    # t_sim with the mean alone: tokens (2, ±1), 4/5; with the rest alone: (1, ±2), 1/5; with both: 1/2.
    assert float(found["attention_mean"]) == pytest.approx(((0.8 - 0.5) + (0.5 - 0.2)) / 2)
    assert float(found["attention_rest"]) == pytest.approx(((0.2 - 0.5) + (0.5 - 0.8)) / 2)
    assert float(found["mlp"]) == 0.0
    assert float(found["norm"]) == pytest.approx(0.0, abs=1e-15)


def test_neither_part_of_attention_goes_first() -> None:
    """Both orders, walked one after the other here, averaged."""
    seen = view(encoder(norm_first=False).double(), streams().double(), None)
    layer, split = seen.layers[0].sites, Split(seen.real_BN)
    found = break_down(layer, split)
    assert found is not None
    for index in range(3):
        x, branch = layer["input"][index], layer["attention"][index]
        common = branch.mean(dim=0).expand_as(branch)
        rest = branch - common
        start, both = similarity(x), similarity(x + branch)
        common_first = (similarity(x + common) - start, both - similarity(x + common))
        rest_first = (both - similarity(x + rest), similarity(x + rest) - start)
        assert abs(common_first[0] - rest_first[0]) > 1e-9, "where order does not matter, averaging shows nothing"
        wanted = [(one + other) / 2 for one, other in zip(common_first, rest_first, strict=True)]
        assert float(found["attention_mean"][index]) == pytest.approx(wanted[0], abs=1e-12)
        assert float(found["attention_rest"][index]) == pytest.approx(wanted[1], abs=1e-12)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_layer_without_mlp_has_no_mlp_part(norm_first: bool) -> None:
    model = encoder(norm_first=norm_first)
    for layer in model.layers:
        nn.init.zeros_(layer.linear2.weight)
        nn.init.zeros_(layer.linear2.bias)
    seen = view(model, streams(), None)
    for one in seen.layers:
        found = break_down(one.sites, Split(seen.real_BN))
        assert found is not None
        assert not found["mlp"].any()
        assert found["attention_mean"].abs().min() > 0


def test_a_layer_without_attention_has_no_attention_part() -> None:
    model = encoder()
    for layer in model.layers:
        nn.init.zeros_(layer.self_attn.out_proj.weight)
        nn.init.zeros_(layer.self_attn.out_proj.bias)
    seen = view(model, streams(), None)
    found = break_down(seen.layers[0].sites, Split(seen.real_BN))
    assert found is not None
    assert not found["attention_mean"].any()
    assert not found["attention_rest"].any()
    assert found["mlp"].abs().min() > 0


def test_branches_that_cannot_be_seen_are_not_guessed() -> None:
    x = streams(batch=1, tokens=2, dim=2)
    everything = sites(input=x, attention=x, mlp=x, output=x)
    split = Split(torch.ones(1, 2, dtype=torch.bool))
    for missing in ("attention", "mlp"):
        assert break_down({name: tensor for name, tensor in everything.items() if name != missing}, split) is None
