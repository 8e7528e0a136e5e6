"""The fastest mode besides the token mean from a few products with attention, and how far that is to be trusted.

Shape suffixes: G heads, N tokens, K eigenvalues of H, M Ritz values of attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from unsmooth.spectra._krylov import Krylov, Operator, arnoldi, start_vector
from unsmooth.spectra._lapack import matrix_vector
from unsmooth.spectra._token_side import RestSide, in_chunks, largest_product
from unsmooth.spectra.verdict import verdict_codes

# Tokens up to which all eigenvalues cost no more than an iteration would.
FEW = 64
# Products in a first look; then, for what it leaves in doubt, products that only turn the start, and a second look.
FIRST, TURNS, SECOND = 24, 64, 48
# How far from an eigenvalue a Ritz value is taken to be, in its own residuals, and at least, in its own size.
CAUTION, ROUNDING = 0.75, 1e-4


@dataclass(frozen=True)
class Look:
    """Largest |1 + θλ| over Ritz values θ, with its θ and λ, and what θ may be off by; all (G,) on the CPU."""

    modulus: Tensor
    token: Tensor
    feature: Tensor
    off: Tensor

    def larger(self, other: Look) -> Look:
        """Of two looks at the same heads the one that saw more, head by head."""
        more_G = other.modulus > self.modulus
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Look(*(torch.where(more_G, theirs, ours) for ours, theirs in pairs))


def fast_rest(
    rest: RestSide, maps_GNN: Tensor, features_GK: Tensor, mean_G: Tensor, floor: float, heads_G: Tensor
) -> Tensor:
    """Fill `rest` for the heads that Ritz values settle; return those that need all eigenvalues."""
    left = [heads_G[:0]]
    for some_G in in_chunks(heads_G):
        maps, features = _without_dust(maps_GNN[some_G.to(maps_GNN.device)]), features_GK[some_G]
        krylov = arnoldi(partial(centred, maps), _start(maps), FIRST)
        ritz_GM = krylov.ritz_values()
        size_G = ritz_GM.abs().amax(dim=1)
        first = Look(*largest_product(ritz_GM, features), off=size_G)
        rest.put(some_G, (first.modulus, first.token, first.feature), "ritz")
        # A look wrong by all of its size changes few verdicts; only for those is it worth asking how wrong it is.
        doubtful = ~_settled(first, features, mean_G[some_G], floor)
        if floor == 0.0:
            # Where the space was exhausted, what is left is rounding: its θ near 0 only a floor would hide.
            doubtful |= krylov.hessenberg.diagonal(-1, 1, 2).amin(dim=1).cpu() < 1e-4 * size_G
        if bool(doubtful.any()):
            some_G, features = some_G[doubtful], features[doubtful]
            first = _look(krylov[doubtful], features)
            doubtful_maps = maps[doubtful.to(maps.device)]
            left.append(_second_look(rest, first, doubtful_maps, features, mean_G[some_G], floor, some_G))
    return torch.cat(left)


def _second_look(
    rest: RestSide, first: Look, maps: Tensor, features_GK: Tensor, mean_G: Tensor, floor: float, heads_G: Tensor
) -> Tensor:
    """Fill in more heads; return those still in doubt."""
    doubtful = ~_settled(first, features_GK, mean_G, floor)
    heads_G, features_GK, mean_G = heads_G[doubtful], features_GK[doubtful], mean_G[doubtful]
    if len(heads_G) == 0:
        return heads_G
    apply = partial(centred, maps[doubtful.to(maps.device)])
    start = _turned(apply, _start(maps)[: len(heads_G)])
    # Turning favours large |μ| and may lose a μ whose phase makes it dominate: the first look is kept beside it.
    first = Look(*(value[doubtful] for value in vars(first).values()))
    best = first.larger(_look(arnoldi(apply, start, SECOND), features_GK))
    rest.put(heads_G, (best.modulus, best.token, best.feature), "ritz")
    return heads_G[~_settled(best, features_GK, mean_G, floor)]


def ritz_token_eigenvalues(maps_GNN: Tensor) -> tuple[Tensor, Tensor]:
    """Ritz values (G, M), and whether both the outermost and the leftmost have settled to 1 % (G,)."""
    if maps_GNN.shape[1] <= FEW:
        return maps_GNN.new_zeros(len(maps_GNN), 1).cpu(), torch.zeros(len(maps_GNN), dtype=torch.bool)
    maps = _without_dust(maps_GNN)
    krylov = arnoldi(partial(centred, maps), _start(maps), SECOND)
    values_GM = krylov.ritz_values()
    settled_G = torch.ones(len(maps), dtype=torch.bool)
    for which_G in (values_GM.abs().argmax(dim=1), values_GM.real.argmin(dim=1)):
        value_G = values_GM.gather(1, which_G[:, None])[:, 0]
        settled_G &= CAUTION * krylov.ritz_residuals(value_G)[0] <= 0.01 * value_G.abs()
    return values_GM, settled_G


def centred(maps_GNN: Tensor, x_GN: Tensor) -> Tensor:
    """(I − Π) A x: on vectors of mean zero its eigenvalues are A's besides the mean's."""
    y_GN = matrix_vector(maps_GNN, x_GN)
    return y_GN - y_GN.mean(dim=-1, keepdim=True)


def _without_dust(maps_GNN: Tensor) -> Tensor:
    """Float32 with zeros for weights too small to matter: below 1e-38 each would slow a product tenfold."""
    return torch.nn.functional.hardshrink(maps_GNN.float(), 1e-30)


def _start(maps_GNN: Tensor) -> Tensor:
    return start_vector(maps_GNN.shape[1], maps_GNN).expand(len(maps_GNN), -1)


def _turned(apply: Operator, x_GN: Tensor) -> Tensor:
    """The start after some products, turned towards the outermost eigenvalues: cheaper than as many steps."""
    for _ in range(TURNS):
        x_GN = apply(x_GN)
        x_GN = x_GN / torch.linalg.vector_norm(x_GN, dim=-1, keepdim=True).clamp_min(1e-30)
    return x_GN


def _look(krylov: Krylov, features_GK: Tensor) -> Look:
    """The largest product, with an estimate of its error from the residual of its Ritz value."""
    ritz_GM = krylov.ritz_values()
    modulus, token, feature = largest_product(ritz_GM, features_GK)
    residual_G, _ = krylov.ritz_residuals(token)
    return Look(modulus, token, feature, CAUTION * residual_G + ROUNDING * ritz_GM.abs().amax(dim=1))


def _settled(look: Look, features_GK: Tensor, mean_G: Tensor, floor: float) -> Tensor:
    """Whether the verdict is the same at both ends of what the rest may be; it only ever moves one way between."""
    error_G = look.off * features_GK.abs().amax(dim=1)
    low = verdict_codes(mean_G, (look.modulus - error_G).clamp_min(floor))
    return low == verdict_codes(mean_G, (look.modulus + error_G).clamp_min(floor))
