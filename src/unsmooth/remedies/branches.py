"""What remedies of the branches share: folding factors into weights, telling them to those who explain, refusals."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from unsmooth.models.block_parts import adds_one, part
from unsmooth.models.value_projection import ValueProjection
from unsmooth.remedies.site import Site, as_in_out


def uncrossed(site: Site) -> str | None:
    """Why a remedy of every branch, with a part for that of cross-attention, cannot have a block; None where it can."""
    if None in site.wiring.others:
        return "a branch beside attention and MLP adds to the stream too, and no module gives it as it is added"
    if "cross" in site.branches or not has_cross(site):
        return None
    return "its cross-attention, which would add to the stream too, did not run, so that its branch is not known"


def crossed(site: Site, but: str) -> str | None:
    """Why a remedy of every branch cannot have a block with a third one; None where the block has none.

    Edits reach attention and MLP only, so that a third branch would be added as it always was.

    Args:
        site: The block.
        but: What the remedy lacks for that branch.
    """
    if has_cross(site):
        return f"its cross-attention adds to the stream too, {but}"
    return f"a branch beside attention and MLP adds to the stream too, {but}" if site.wiring.others else None


def has_cross(site: Site) -> bool:
    """Whether a block has cross-attention, also where its family has it only in models built to read another one."""
    return "cross" in site.host.taps(site.block) or getattr(site.block, "crossattention", None) is not None


def scale_linear(module: nn.Module, scale: float | Tensor) -> None:
    """Multiply a linear map, or a norm, and its bias, in place: by a number, or by one per channel of its output.

    >>> linear = nn.Linear(1, 2)
    >>> _ = nn.init.constant_(linear.weight, 2.0), nn.init.constant_(linear.bias, 1.0)
    >>> scale_linear(linear, torch.tensor([0.5, 10.0]))
    >>> linear(torch.tensor([3.0])).tolist()  # half of 2·3 + 1, and ten of it
    [3.5, 70.0]
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters(recurse=False):
            if adds_one(module):
                parameter.add_(1.0).mul_(scale).sub_(1.0)
            else:
                (as_in_out(module, name) if parameter.ndim > 1 else parameter).mul_(scale)


def fold_scales(
    site: Site, attention: float | Tensor, mlp: float | Tensor, cross: float | Tensor | None = None
) -> None:
    """What ends a branch takes the factor: its last linear map, or the norm after it, which would undo it there.

    Experts are added up with weights that sum to one, so what all of them give takes it as what one does.
    """
    for path, scale in zip(site.wiring.ends, (attention, mlp), strict=False):
        if path in site.wiring.experts:
            site.block.get_parameter(path).data.mT.mul_(scale)
        else:
            scale_linear(part(site.block, path), scale)
    if cross is not None and "cross" in site.branches:
        scale_linear(part(site.block, site.cross_end), cross)


def folded_scales(site: Site) -> list[nn.Parameter]:
    """The weights that `fold_scales` writes to."""
    return site.weights_at(*site.wiring.ends, *filter(None, [site.cross_end]))


def why_not_folded(site: Site) -> str | None:
    """Why a factor of a branch beside attention and MLP has no weight to go to, or None where each has."""
    if site.wiring.others:
        return "a branch beside attention and MLP ends in no linear map that is known"
    crosses = "cross" in site.branches
    return "its cross-attention ends in no linear map that is known" if crosses and not site.cross_end else None


def scaled_output(values: ValueProjection, scale: float | Tensor) -> ValueProjection:
    """The projection of a branch that is multiplied by `scale`: so is H, or what a norm makes of it."""
    if values.output_norm is not None:
        gain = torch.ones_like(values.w_o[0, 0]) if values.gain is None else values.gain
        return dataclasses.replace(values, gain=gain * scale)
    b_o = None if values.b_o is None else values.b_o * scale
    return dataclasses.replace(values, w_o=values.w_o * scale, b_o=b_o)
