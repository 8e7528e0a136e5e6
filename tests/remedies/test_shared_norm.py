"""Blocks in which attention and MLP read one norm, as some parallel blocks do: what acts on both acts on it once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.remedies.hosts import BY_NAME
from unsmooth.models import find_anatomy
from unsmooth.remedies.base import REMEDIES
from unsmooth.remedies.block import add_edit, drop_edit, sites_of
from unsmooth.remedies.call import Volatile
from unsmooth.remedies.site import Site


@pytest.fixture
def site() -> Site:
    """The third of torch's blocks, as if its MLP read attention's norm too."""
    found = sites_of(find_anatomy(BY_NAME["torch_pre"].model()))[2]
    return dataclasses.replace(found, wiring=dataclasses.replace(found.wiring, norms=("norm1", "norm1")))


def read_and_given(site: Site, name: str, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What enters the block, and what its norm reads and gives, with a remedy."""
    edit = REMEDIES[name](site, **options)
    add_edit(site, name, edit, Volatile())
    edit.install(site)
    seen: list[Tensor] = []
    # Registered last, so that all edits are done.
    site.block.norm1.register_forward_hook(lambda module, args, out: seen.extend([args[0], out]))
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        site.block(x)
    return x, *seen


def test_its_output_is_scaled_once_and_so_are_its_weights(site: Site) -> None:
    norm, before = site.block.norm1, site.block.norm1.weight.clone()
    x, _, given = read_and_given(site, "layernorm_scaling")
    torch.testing.assert_close(given, norm(x) / 3**0.5)
    site.block.unsmooth.layernorm_scaling.fold(site)
    torch.testing.assert_close(norm.weight, before / 3**0.5)


def test_what_it_reads_is_spread_once(site: Site) -> None:
    x, read, _ = read_and_given(site, "contranorm", scale=0.5, variant="official")
    unit = torch.nn.functional.normalize(x, dim=-1)
    torch.testing.assert_close(read, x - 0.5 * (unit @ unit.mT).softmax(dim=-1) @ x)


def test_its_weights_are_turned_around_once(site: Site) -> None:
    before = site.block.norm1.weight.clone()
    read_and_given(site, "norm_signs", norm="both")
    assert torch.equal(site.block.norm1.weight, -before)
    site.block.unsmooth.norm_signs.remove(site)
    drop_edit(site, "norm_signs")
    assert torch.equal(site.block.norm1.weight, before)
