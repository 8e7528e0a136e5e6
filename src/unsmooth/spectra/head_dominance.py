"""Dominance of every head: does the token mean grow faster than what differs, or the other way round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.spectra._checks import causal_heads, check_eigenvalues, check_maps
from unsmooth.spectra._ritz import FEW, fast_rest
from unsmooth.spectra._token_side import (
    RestSide,
    causal_token_eigenvalues,
    dense_token_eigenvalues,
    in_chunks,
    largest_product,
)
from unsmooth.spectra.token_mode import phase_cosine, token_modes
from unsmooth.spectra.verdict import VERDICT_NAMES, Dominance, Verdict, log_ratio, verdict_codes

Route = Literal["auto", "dense"]


@dataclass(frozen=True)
class HeadDominance:
    """`Dominance` of many heads; tensors (heads,) on the CPU, NaN where `Dominance` has None.

    Attributes:
        mean_modulus: float64.
        rest_modulus: float64.
        margin: float64.
        verdict: One word per head.
        feature_eigenvalue: complex128.
        token_eigenvalue: complex128.
        mode_cosine: float64.
        route: One word per head.
    """

    mean_modulus: Tensor
    rest_modulus: Tensor
    margin: Tensor
    verdict: tuple[Verdict, ...]
    feature_eigenvalue: Tensor
    token_eigenvalue: Tensor
    mode_cosine: Tensor
    route: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.verdict)

    def __getitem__(self, head: int) -> Dominance:
        token, cosine = complex(self.token_eigenvalue[head]), float(self.mode_cosine[head])
        return Dominance(
            mean_modulus=float(self.mean_modulus[head]),
            rest_modulus=float(self.rest_modulus[head]),
            margin=float(self.margin[head]),
            verdict=self.verdict[head],
            feature_eigenvalue=complex(self.feature_eigenvalue[head]),
            token_eigenvalue=None if token != token else token,
            mode_cosine=None if cosine != cosine else cosine,
            route=self.route[head],
        )


def head_dominance(
    maps_GNN: Tensor,
    eigenvalues_GK: Tensor,
    causal: bool | None = None,
    route: Route = "auto",
    *,
    full_rank: bool = False,
    modes: bool = False,
    allow_unnormalised: bool = False,
) -> HeadDominance:
    r"""Dominance of single heads X ← X + A X H, from attention maps and eigenvalues of H.

    The update has the eigenvalues 1 + μλ, with μ of A and λ of H. Rows of A sum to one, so μ = 1 belongs to equal
    tokens, and the head is smoothing where

    .. math:: \max_j |1 + \lambda_j| > \max_{\mu \ne 1, j} |1 + \mu \lambda_j|

    (P1, arXiv 2401.04301, over all pairs, since its shorter rules hold for real μ only). A causal A has its
    eigenvalues on the diagonal. Otherwise "auto" takes the outermost ones from a few products with (I − Π)A in
    float32, and all of them in float64 only for heads that these leave in doubt: verdicts agree, while
    `rest_modulus` − 1 is an estimate that may be some per cent off where the spectrum of A fills a disc.

    Args:
        maps_GNN: Attention (heads, n, n), queries × keys, of any layers and sequences.
        eigenvalues_GK: λ of each, from `head_eigenvalues`.
        causal: Whether the maps are lower triangular; None looks at each.
        route: "auto", or "dense" for all eigenvalues in float64 of every map that is not causal.
        full_rank: H has no eigenvalue besides those given. By default it has zeros too, as a head with d_h < d
            does: then nothing shrinks everywhere, and both moduli are 1 at least.
        modes: Also find `mode_cosine`; costs one n×n solve for each head whose rest dominates.
        allow_unnormalised: Take maps whose rows do not sum to one. Equal tokens then do not stay equal: the mean is
            taken to be multiplied by the mean row sum, and what leaks between mean and rest is left out.

    Returns:
        One entry per head.

    Example:
        >>> maps = torch.tensor([[[0.75, 0.25], [0.25, 0.75]]]).expand(3, -1, -1)  # μ = 1 and 0.5
        >>> found = head_dominance(maps, torch.tensor([[1.0], [-0.5], [0.0]]))
        >>> found.mean_modulus, found.rest_modulus
        (tensor([2., 1., 1.], dtype=torch.float64), tensor([1.5000, 1.0000, 1.0000], dtype=torch.float64))
        >>> found.verdict
        ('smoothing', 'preserving', 'preserving')
        >>> head_dominance(maps[:1], torch.tensor([[-0.5]]), full_rank=True)[0].verdict  # 0.5 against 0.75
        'sharpening'
    """
    maps_GNN = check_maps(maps_GNN, allow_unnormalised=allow_unnormalised)
    features_GK = check_eigenvalues(eigenvalues_GK, len(maps_GNN))
    if route not in ("auto", "dense"):
        raise expected("route 'auto' or 'dense'", repr(route), "'auto'")
    floor = 0.0 if full_rank else 1.0
    gain_G1 = maps_GNN.sum(dim=(1, 2)).cpu().double()[:, None] / maps_GNN.shape[1] if allow_unnormalised else 1.0
    raw_mean_G, which_G = (1.0 + gain_G1 * features_GK).abs().max(dim=1)
    mean_G = raw_mean_G.clamp_min(floor)
    causal_G = causal_heads(maps_GNN, causal)
    rest = _rest(maps_GNN, features_GK, mean_G, causal_G, floor, route, not allow_unnormalised)
    return _assemble(maps_GNN, mean_G, features_GK.gather(1, which_G[:, None])[:, 0], rest, floor, modes)


def _rest(
    maps_GNN: Tensor,
    features_GK: Tensor,
    mean_G: Tensor,
    causal_G: Tensor,
    floor: float,
    route: Route,
    normalised: bool,
) -> RestSide:
    """Every head by the cheapest way that settles it."""
    rest = RestSide.empty(len(maps_GNN))
    diagonal_G = causal_G.nonzero()[:, 0]
    if len(diagonal_G):
        tokens_GM = causal_token_eigenvalues(maps_GNN[diagonal_G])
        rest.put(diagonal_G, largest_product(tokens_GM, features_GK[diagonal_G]), "causal")
    others_G = (~causal_G).nonzero()[:, 0]
    if route == "auto" and maps_GNN.shape[1] > FEW:
        others_G = fast_rest(rest, maps_GNN, features_GK, mean_G, floor, others_G)
    for some_G in in_chunks(others_G):
        tokens_GM = dense_token_eigenvalues(maps_GNN[some_G.to(maps_GNN.device)], normalised)
        rest.put(some_G, largest_product(tokens_GM, features_GK[some_G]), "dense")
    return rest


def _assemble(
    maps_GNN: Tensor, mean_G: Tensor, feature_G: Tensor, rest: RestSide, floor: float, modes: bool
) -> HeadDominance:
    """Compare the sides and name what dominates."""
    rest_G = rest.modulus.clamp_min(floor)
    by_rest_G = rest_G > mean_G
    # Where both stand on the floor, it is H's null space that does, with all token modes and λ = 0.
    shared_G = (floor > 0.0) & (torch.maximum(mean_G, rest.modulus) <= floor)
    token_G = torch.where(by_rest_G, rest.token, 1.0 + 0.0j)
    cosine_G = torch.full_like(mean_G, torch.nan)
    if modes:
        cosine_G = torch.where(by_rest_G, torch.nan, 1.0).to(mean_G)
        for some_G in in_chunks(by_rest_G.nonzero()[:, 0]):
            cosine_G[some_G] = phase_cosine(token_modes(maps_GNN[some_G.to(maps_GNN.device)], rest.token[some_G]))
    return HeadDominance(
        mean_modulus=mean_G,
        rest_modulus=rest_G,
        margin=torch.tensor([log_ratio(*pair) for pair in zip(mean_G.tolist(), rest_G.tolist(), strict=True)]).to(
            mean_G
        ),
        verdict=tuple(VERDICT_NAMES[code] for code in verdict_codes(mean_G, rest_G).tolist()),
        feature_eigenvalue=torch.where(by_rest_G, rest.feature, torch.where(shared_G, 0.0j, feature_G)),
        token_eigenvalue=torch.where(shared_G, complex(torch.nan, torch.nan), token_G),
        mode_cosine=torch.where(shared_G, torch.nan, cosine_G),
        route=tuple(rest.route),
    )
