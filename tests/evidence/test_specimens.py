from __future__ import annotations

import pytest
import torch
from torch import nn

from unsmooth.evidence import Bench, Specimen
from unsmooth.evidence.records import SCALES
from unsmooth.evidence.specimens import at_hand
from unsmooth.models import demo
from unsmooth.models.packaged import PACKAGED
from unsmooth.scanning import scan


@pytest.fixture
def nothing_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "built", lambda: False)


@pytest.mark.usefixtures("nothing_shipped")
def test_random_networks_stand_in_and_do_not_count_as_trained() -> None:
    for scale in SCALES:
        found = [one for one in at_hand(Bench(scale=scale)) if one.ours]
        assert [one.name for one in found] == ["random ViT 0", "random ViT 1"]
        assert not any(one.trained for one in found)


@pytest.mark.usefixtures("nothing_shipped")
def test_random_networks_are_the_same_every_time_and_differ_from_one_another() -> None:
    first, again = at_hand(Bench())[0], at_hand(Bench())[0]
    other = at_hand(Bench())[1]
    assert torch.equal(first.data(), again.data())
    weights = [_weights(one) for one in (first, again)]
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], _weights(other))


def _weights(specimen: Specimen) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in specimen.load().parameters()])


@pytest.mark.usefixtures("nothing_shipped")
def test_what_is_at_hand_can_be_scanned_with_its_options() -> None:
    one = at_hand(Bench())[0]
    assert scan(one.load(), one.data(), progress=False, **one.options).layers == (0, 1, 2, 3)


def test_our_own_models_take_the_place_of_random_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "built", lambda: True)
    found = [one for one in at_hand(Bench(scale="small")) if one.ours]
    assert [one.name for one in found] == ["demo:plain", "demo:sharpen", "demo:smooth"]
    assert all(one.trained for one in found)
    assert not any(one.trained for one in at_hand(Bench(scale="tiny"))), "seconds are for showing that it runs"


@pytest.mark.usefixtures("nothing_shipped")
def test_given_specimens_come_first_and_take_the_place_of_their_namesakes() -> None:
    mine = Specimen("random ViT 1", nn.Identity, list)
    found = at_hand(Bench(specimens=(mine,)))
    assert found[0] is mine
    assert [one.name for one in found] == ["random ViT 1", "random ViT 0"]


@pytest.mark.usefixtures("nothing_shipped")
def test_packaged_models_are_others_and_wait_for_a_larger_scale() -> None:
    installed = [model.name for model in PACKAGED if model.find() is not None]
    assert [one.name for one in at_hand(Bench(scale="small")) if not one.ours] == installed
    assert not [one for one in at_hand(Bench(scale="tiny")) if not one.ours]
