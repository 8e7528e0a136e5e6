"""What each layer does to t_sim, foretold from ever more knowledge: T0 weights alone … T4 the block on its own tokens.

A tier draws tokens that have the statistics it knows and none other, lets the block act on them, and reads off the
change of logit t_sim = log(‖ΠX‖²/‖(I − Π)X‖²). Drawn tokens are X̂ = diag(s)(1ūᵀ + QŨ): s are the tokens' scales, ū
and Ũ mean and deviations of the tokens less their scale, and Q is a random rotation of what differs, which leaves
mean, covariance and spectrum as they are and mixes up which token is which. Pushed through layer after layer, such
tokens are a mean-field closure by particles: what later layers get is what earlier ones made of the first statistics.
A tier that also knows the statistics of a later layer gives them to the tokens that it carries, turned as little as can
be: which token attends to which is then still what the layers before made of it. Where maps are not known, attention is
what the block's own queries and keys make of the tokens that were drawn.

Shape suffixes: B sequences, N tokens, D dimensions, H heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.explaining.jacobian import Split
from unsmooth.explaining.observe import LayerView
from unsmooth.models import ValueProjection
from unsmooth.models.hooks import Hooks
from unsmooth.models.watch import first_input, first_output


@dataclass(frozen=True)
class Tier:
    """What a tier may know.

    Args:
        knows: In words.
        embedding: Statistics of what enters the first layer.
        streams: Statistics of what enters each layer, up to the one that is foretold.
        maps: Attention maps likewise.
        tokens: The tokens that enter the layer.
    """

    knows: str
    embedding: bool = False
    streams: bool = False
    maps: bool = False
    tokens: bool = False


TIERS: Mapping[str, Tier] = {
    "T0": Tier("the weights alone"),
    "T1": Tier("the weights and the statistics of the embedding, closed through all layers", embedding=True),
    "T2": Tier("the weights and the layer's input statistics, not its attention", embedding=True, streams=True),
    "T3": Tier("the weights, the layer's input statistics and its attention maps", True, True, maps=True),
    "T4": Tier("the tokens themselves: it is the block, run again", True, True, maps=True, tokens=True),
}


def foretell(
    tier: Tier,
    layers: Sequence[LayerView],
    real_BN: Tensor,
    attention: Sequence[tuple[ValueProjection, Tensor] | None],
    generator: torch.Generator,
) -> Iterator[Tensor | None]:
    """The change of logit t_sim (batch,) over each layer; None where the tier needs maps and there are none.

    What a remedy in an earlier block had handed on is as it was in the real pass.

    Args:
        tier: What may be known.
        layers: The layers of one batch.
        real_BN: Tokens that are not padding.
        attention: For every layer its value weights and maps, where these give what its attention does.
        generator: Of the tokens that are drawn.
    """
    first = layers[0].sites["input"]
    x = (drawn_tokens if tier.embedding else isotropic_tokens)(first, real_BN, generator)
    for layer, known in zip(layers, attention, strict=True):
        enters = layer.sites["input"]
        split = Split(real_BN.to(enters.device))  # layers may be spread over devices
        x = enters if tier.tokens else x.to(enters.device)
        if tier.streams and not tier.tokens:
            x = corrected_tokens(x, enters, split.real_BN)
        given = known if tier.maps and {"normed", "attention"} <= {*layer.taps} else None
        y = layer.rerun(x) if given is None else attended_by(layer, *given, x)
        told = given is not None or tier.tokens or not tier.maps
        yield logit_similarity(split, y) - logit_similarity(split, x) if told else None
        x = y


def logit_similarity(split: Split, x_BND: Tensor) -> Tensor:
    """The logit of t_sim, log(‖ΠX‖²/‖(I − Π)X‖²) of each sequence (batch,).

    Taken from both energies, not from t_sim, which rounds to 1 where tokens are nearly equal.
    """
    mean_BND = split.mean_part(x_BND.double())
    rest_BND = split.rest_part(x_BND.double())
    found_B: Tensor = split.energy(mean_BND).log() - split.energy(rest_BND).log()
    return found_B


def drawn_tokens(x_BND: Tensor, real_BN: Tensor, generator: torch.Generator) -> Tensor:
    """Tokens with the scales, and with mean and covariance of the directions, that the real ones have."""
    return _each(x_BND, real_BN, lambda _, x: _imposed(x, lambda rest_ND: randomly_turned(rest_ND, generator)))


def isotropic_tokens(x_BND: Tensor, real_BN: Tensor, generator: torch.Generator) -> Tensor:
    """Independent standard normal tokens in the place of the real ones, of which only the number is taken."""
    return _each(x_BND, real_BN, lambda _, x: torch.randn(x.shape, generator=generator, dtype=x.dtype))


def corrected_tokens(carried_BND: Tensor, x_BND: Tensor, real_BN: Tensor) -> Tensor:
    """The tokens with these statistics of the real ones that are nearest to those carried so far.

    Q is the solution of the orthogonal Procrustes problem: with UΣVᵀ = R̂Ũᵀ, R̂ the deviations carried, it is UVᵀ.
    """

    def nearest(sequence: int, x_ND: Tensor) -> Tensor:
        direction = _directions(carried_BND[sequence, real_BN[sequence]])[1]
        carried = direction - direction.mean(dim=0)
        return _imposed(x_ND, lambda rest_ND: nearest_turned(rest_ND, carried))

    return _each(x_BND, real_BN, nearest)


def _each(x_BND: Tensor, real_BN: Tensor, tokens: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Other tokens in the place of each sequence's real ones, in float64 on the CPU; padding stays as it is."""
    drawn = x_BND.clone()
    for sequence, real_N in enumerate(real_BN):
        if int(real_N.sum()) > 1:
            drawn[sequence, real_N] = tokens(sequence, x_BND[sequence, real_N].double().cpu()).to(x_BND)
    return drawn


def _imposed(x_ND: Tensor, turn: Callable[[Tensor], Tensor]) -> Tensor:
    """diag(s)(1ūᵀ + QŨ), `turn` being Q."""
    scale, direction = _directions(x_ND)
    mean = direction.mean(dim=0)
    return scale * (mean + turn(direction - mean))


def _directions(x_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Root mean square (tokens, 1) of each token, and the token less it, float64."""
    x = x_ND.double().cpu()
    scale = x.square().mean(dim=1, keepdim=True).sqrt()
    return scale, x / torch.where(scale > 0, scale, 1.0)


def randomly_turned(rest_ND: Tensor, generator: torch.Generator) -> Tensor:
    """QŨ for a random rotation Q; of many tokens without Q, whose effect on few dimensions is a random frame's."""
    tokens, dim = rest_ND.shape
    if not _is_tall(rest_ND):
        return random_rotation(tokens, generator) @ rest_ND
    start = torch.randn(tokens, dim, generator=generator, dtype=torch.float64)
    frame, upper = torch.linalg.qr(start - start.mean(dim=0))
    return torch.as_tensor(frame * upper.diagonal().sign() @ torch.linalg.qr(rest_ND).R)


def nearest_turned(rest_ND: Tensor, carried_ND: Tensor) -> Tensor:
    """QŨ for the rotation Q that brings it nearest to the deviations carried; of many tokens without Q."""
    if not _is_tall(rest_ND):
        # With ones added, which no deviation meets, the mean of all tokens goes to itself whatever the rank.
        left, _, right = torch.linalg.svd(carried_ND @ rest_ND.T + 1.0)
        return torch.as_tensor(left @ right @ rest_ND)
    own, (other, upper) = torch.linalg.qr(rest_ND).R, torch.linalg.qr(carried_ND)
    left, _, right = torch.linalg.svd(upper @ own.T)
    return torch.as_tensor(other @ (left @ right) @ own)


def _is_tall(rest_ND: Tensor) -> bool:
    """Whether its rotation has so many numbers more that it is worth another way, which rounds otherwise."""
    return len(rest_ND) > max(1024, rest_ND.shape[1] + 1)


def random_rotation(tokens: int, generator: torch.Generator) -> Tensor:
    """A random orthogonal map (tokens, tokens), uniform among those that leave the mean of all tokens alone."""

    def basis() -> Tensor:
        start = torch.randn(tokens, tokens, generator=generator, dtype=torch.float64)
        start[:, 0] = 1.0
        whole, upper = torch.linalg.qr(start)
        return torch.as_tensor(whole * upper.diagonal().sign())

    return basis() @ basis().T


def attended_by(layer: LayerView, values: ValueProjection, maps_BHNN: Tensor, x_BND: Tensor) -> Tensor:
    """The block's output had `x_BND` entered it and its heads attended by `maps_BHNN`, whatever they are."""
    taps, times = layer.taps, layer.taps["attention"].times
    if times != 1.0 and values.gain is not None:  # which the block does itself, after the tap
        values = dataclasses.replace(values, gain=None if isinstance(times, str) else values.gain / times)
    normed: list[Tensor] = []

    def read(module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """Of a module's input by keywords, of its output last."""
        given = rest[-1]
        found = first_output(given) if taps["normed"].end == "output" else first_input(args, given)
        normed.append(layer.batched(found))

    def replace(module: nn.Module, args: Any, output: Any) -> Any:
        given = first_output(output)
        mixed = layer.restored(values.attention_output(maps_BHNN, normed[-1]), given).to(given.dtype)
        if isinstance(output, Tensor):
            return mixed
        return [mixed, *output[1:]] if isinstance(output, list) else (mixed, *output[1:])

    reads, writes = (layer.block.get_submodule(taps[site].module) for site in ("normed", "attention"))
    with Hooks() as hook:
        if taps["normed"].end == "output":
            hook(reads.register_forward_hook, read)
        else:
            hook(reads.register_forward_pre_hook, read, with_kwargs=True)
        hook(writes.register_forward_hook, replace)
        return layer.rerun(x_BND)
