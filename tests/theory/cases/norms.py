"""Norms: the scale of the stream and the sign of the norm's weight decide with H."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tests.theory.case import BEYOND_P1, Comparison, Setup, case
from tests.theory.cases._tools import eigenvalues, off_mean
from unsmooth.theory.iterate import Trajectory, iterate
from unsmooth.theory.maps import drawn, random_attention, with_eigenvalues
from unsmooth.theory.modes import eigenvalue_distance

GROUP = "Norms"
TOKENS, DIM = 16, 64


def _stream(std: float) -> Tensor:
    """Tokens with a shared part and features of this standard deviation."""
    x_ND = drawn(TOKENS, DIM, seed=90) + 0.6 * drawn(1, DIM, seed=91)
    return std * x_ND / x_ND.std()


def _pre_norm(std: float) -> Setup:
    h = -0.9 * torch.eye(DIM, dtype=torch.float64)
    return Setup(random_attention(TOKENS, seed=92), h, _stream(std), depth=1, norm="pre")


def _change(setup: Setup) -> float:
    similarity = setup.run().token_similarity
    return (similarity[-1] - similarity[0]).item()


@case(
    lambda: _pre_norm(1.0),
    name="pre-norm-scale",
    group=GROUP,
    description="A pre-norm divides the branch's input by σ, so the effective eigenvalues are λ/σ: one layer with "
    "H = −0.9I sharpens a stream of scale 1 and smooths the same stream at scale 0.02.",
    paper=BEYOND_P1,
    predicted="t_sim falls at scale 1 and rises at scale 0.02",
)
def _scale(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    small = _pre_norm(0.02).run().token_similarity
    first, last = trajectory.token_similarity.tolist()
    low, high = 0.02, 1.0
    for _ in range(40):  # bisection for the scale at which the layer changes nothing
        middle = (low * high) ** 0.5
        low, high = (middle, high) if _change(_pre_norm(middle)) > 0 else (low, middle)
    return [
        Comparison("t_sim after the layer at scale 1", last, "<", first),
        Comparison("t_sim after the layer at scale 0.02", small[1].item(), ">", small[0].item()),
        # Averaging attention leaves (1 − 0.9/σ) of the mean, which is as long as before at σ = 0.45; real maps keep
        # some of the rest, too.
        Comparison("scale at which it turns", low, "≈", 0.45, tolerance=0.1),
    ]


def _gained(sign: float) -> Setup:
    h = 0.5 * torch.eye(DIM, dtype=torch.float64)
    gain = sign * (0.5 + drawn(DIM, seed=93).abs())
    return Setup(random_attention(TOKENS, seed=94), h, _stream(1.0), depth=1, norm="pre", norm_weight=gain)


@case(
    lambda: _gained(1.0),
    name="negated-norm-weight",
    group=GROUP,
    description="The weight γ of a pre-norm multiplies H from the left: negating it negates the eigenvalues of the "
    "effective H, and turns a smoothing layer into a sharpening one.",
    predicted="t_sim rises with γ and falls with −γ",
)
def _negated(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    opposite = _gained(-1.0)
    plus = eigenvalues(setup.gain_D.diag() @ setup.h_DD)
    minus = eigenvalues(opposite.gain_D.diag() @ opposite.h_DD)
    return [
        Comparison("change of t_sim with γ", _change(setup), ">", 0.0),
        Comparison("change of t_sim with −γ", _change(opposite), "<", 0.0),
        Comparison("distance of one spectrum to minus the other", eigenvalue_distance(plus, -minus), "<", 1e-12),
        Comparison("after 4 layers with γ", _later(setup), ">", trajectory.token_similarity[0].item()),
        Comparison("after 4 layers with −γ", _later(opposite), "<", trajectory.token_similarity[0].item()),
    ]


def _later(setup: Setup) -> float:
    return replace(setup, depth=4).run().token_similarity[-1].item()


def _post_norm() -> Setup:
    """Tokens of which the layer, before its norm, makes tokens of one scale: the norm is then a fixed matrix."""
    attention, h = random_attention(6, seed=95), with_eigenvalues([-0.8, 0.4, 0.3, -0.2, 0.6], seed=96)
    wanted_ND = drawn(6, 5, seed=97)
    centred_ND = wanted_ND - wanted_ND.mean(dim=1, keepdim=True)
    wanted_ND = centred_ND / centred_ND.square().mean(dim=1, keepdim=True).sqrt() + 0.3
    layer = torch.eye(30, dtype=torch.float64) + torch.kron(attention, h.T.contiguous())
    x0 = torch.linalg.solve(layer, wanted_ND.flatten()).reshape(6, 5)
    gain = 1.0 + 0.5 * drawn(5, seed=98)
    return Setup(attention, h, x0, depth=1, norm="post", norm_weight=gain, normalise=False)


@case(
    _post_norm,
    name="post-norm-equal-scale",
    group=GROUP,
    description="A post-norm on tokens of one scale σ is the matrix C diag(γ)/σ, C = I − 11ᵀ/d: it multiplies (I + H) "
    "on the token mean and X̃ + (I − Π)AX̃H on the rest, residual included.",
    paper=BEYOND_P1,
    predicted="the norm acts as C diag(γ)/σ on both parts",
)
def _post(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    centring = torch.eye(5, dtype=torch.float64) - 1.0 / 5
    norm_DD = centring @ setup.gain_D.diag()
    rest = off_mean(setup.x0)
    wanted = (rest + off_mean(setup.map_NN @ rest @ setup.h_DD)) @ norm_DD
    equal = drawn(1, 5, seed=99).expand(6, 5)
    before = equal @ (torch.eye(5, dtype=torch.float64) + setup.h_DD) @ centring
    wanted_mean = before / before.square().mean(dim=1, keepdim=True).sqrt() * setup.gain_D
    run = iterate(equal, setup.map_NN, setup.h_DD, depth=1, norm="post", norm_weight=setup.gain_D, normalise=False)
    return [
        Comparison("distance of the rest", (off_mean(trajectory.x_ND) - wanted).abs().max().item(), "<", 1e-12),
        Comparison("distance of equal tokens", (run.x_ND - wanted_mean).abs().max().item(), "<", 1e-12),
    ]
