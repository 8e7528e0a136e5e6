from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from tests.remedies.hosts import BY_NAME
from unsmooth.models import find_anatomy
from unsmooth.remedies.block import sites_of
from unsmooth.remedies.spectral.gram import scaled_rows
from unsmooth.remedies.spectral.slots import ValueSlots

# Separate, in one row of three, head by head, stored the other way round.
HOSTS = ["bert", "llama", "torch_post", "neox_parallel", "gpt2"]


@pytest.mark.parametrize("name", HOSTS)
def test_gradients_are_those_of_the_product(name):
    slots = ValueSlots(sites_of(find_anatomy(BY_NAME[name].model().double()))[0])
    weight, factor = slots.parameter(), torch.tensor(-0.7, dtype=torch.double)
    along = torch.randn(slots.rows().shape, dtype=torch.double)
    torch.testing.assert_close(scaled_rows(slots, factor), -0.7 * slots.rows())
    (wanted,) = torch.autograd.grad((slots.rows() * factor * along).sum(), weight)
    (found,) = torch.autograd.grad((scaled_rows(slots, factor) * along).sum(), weight)
    torch.testing.assert_close(found, wanted)


def test_derivatives_of_every_kind():
    slots = ValueSlots(sites_of(find_anatomy(BY_NAME["torch_post"].model().double()))[0])
    factor = torch.tensor(-0.7, dtype=torch.double)

    def of(weight):
        slots.module._parameters[slots.name] = weight
        return scaled_rows(slots, factor)[:, :2, :3]

    weight = slots.parameter().detach().clone().requires_grad_()
    assert gradcheck(of, weight, check_forward_ad=True)
    assert gradgradcheck(of, weight)


def test_many_gradients_at_once():
    slots = ValueSlots(sites_of(find_anatomy(BY_NAME["torch_post"].model().double()))[0])
    weight, factor = slots.parameter(), torch.tensor(-0.7, dtype=torch.double)
    along = torch.randn(3, *slots.rows().shape, dtype=torch.double)
    rows = scaled_rows(slots, factor)
    (found,) = torch.vmap(lambda one: torch.autograd.grad(rows, weight, one, retain_graph=True))(along)
    for one, each in zip(found, along, strict=True):
        (wanted,) = torch.autograd.grad(scaled_rows(slots, factor), weight, each)
        assert torch.equal(one, wanted)
