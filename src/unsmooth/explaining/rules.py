"""Rules that predict whether a layer makes tokens more alike, from the plainest to what the block's Jacobian says.

A rule never sees the layer's output. Each predicts the change of t_sim over the layer, or at least its sign, and is
scored against what is measured beside the majority guess: a rule that always says "rise" is worth nothing, however
often tokens do become more alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy
from torch import Tensor

from unsmooth.explaining.jacobian import BlockMap, Split
from unsmooth.explaining.observe import LayerView
from unsmooth.explaining.spectral import LayerSpectra
from unsmooth.models import ValueProjection
from unsmooth.registry import Registry

# Where on the way from the collapsed point (0) to the real tokens (1) the Jacobian is taken: Gauss-Legendre nodes.
JACOBIANS = 4


@dataclass
class LayerInput:
    """What a rule may look at: the stream that enters a layer, its weights, and the block to differentiate."""

    layer: LayerView
    split: Split
    values: ValueProjection | None

    @property
    def x_BND(self) -> Tensor:
        """The stream that enters."""
        return self.layer.sites["input"]

    @cached_property
    def block(self) -> BlockMap:
        """The block as a differentiable map."""
        return BlockMap(self.layer, self.split)

    @cached_property
    def read_BND(self) -> Tensor | None:
        """What attention reads, less the bias of a norm before it."""
        if self.values is None:
            return None
        if self.values.place == "post":
            return self.x_BND
        normed = self.layer.sites.get("normed")
        bias = self.values.norm.bias
        return normed if normed is None or bias is None else normed - bias

    @cached_property
    def at_collapse(self) -> tuple[Tensor, Tensor]:
        """f(1x̄ᵀ) and J(1x̄ᵀ)X̃."""
        return self.block.push(self.block.collapsed(), self.split.rest_part(self.x_BND))

    def change_to(self, predicted_BND: Tensor) -> Tensor:
        """Change of t_sim (batch,) if `predicted_BND` left the layer."""
        return self.split.similarity(predicted_BND) - self.split.similarity(self.x_BND)


@dataclass(frozen=True)
class Rule:
    """One way to predict.

    Args:
        definition: What it computes, in words.
        of_spectra: From spectra alone, one number for the layer.
        of_input: From a batch that enters, one number per sequence, or None where it cannot tell.
    """

    definition: str
    of_spectra: Callable[[LayerSpectra], float] | None = None
    of_input: Callable[[LayerInput], Tensor | None] | None = None


RULES = Registry[Rule]("rule")
# As near as eigenvalues of float32 weights can be told from 1.
ROUNDING = 1e-6


def _largest_eigenvalue(found: LayerSpectra) -> float:
    """A norm that takes the mean out leaves H an eigenvalue of 0, and 1 + 0 is not above 1, however it is rounded."""
    modulus = found.dominance.mean_modulus
    if abs(modulus - 1) < ROUNDING:
        return 0.0
    return math.log(modulus) if modulus > 0 else -math.inf


def _dominance(found: LayerSpectra) -> float:
    return found.dominance.margin if found.known_rest else math.nan


def _token_mean(given: LayerInput) -> Tensor | None:
    if given.values is None or given.read_BND is None:
        return None
    mean = given.split.mean_part
    before, read = mean(given.x_BND), mean(given.read_BND)
    after = before + read.to(given.values.w_v.dtype) @ given.values.summed()
    return (given.split.energy(after) / given.split.energy(before)).log() / 2


def _attention(given: LayerInput) -> Tensor | None:
    """The branch itself, less the push of biases: Σ_h A_h X L H_h at real activations weighs modes by their energy."""
    branch = given.layer.sites.get("attention")
    if given.values is None or branch is None:
        return None
    drift = given.values.drift() if given.values.output_norm is None else None
    return given.change_to(given.x_BND + (branch if drift is None else branch - drift.to(branch)))


def _collapse(given: LayerInput) -> Tensor:
    value, pushed = given.at_collapse
    return given.change_to(value + pushed)


def _jacobian(given: LayerInput) -> Tensor:
    value, _ = given.at_collapse
    point, rest = given.block.collapsed(), given.split.rest_part(given.x_BND)
    nodes, weights = numpy.polynomial.legendre.leggauss(JACOBIANS)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        # Nodes and weights are those of [−1, 1]; the way is [0, 1].
        value = value + weight / 2.0 * given.block.push(point + (1.0 + node) / 2.0 * rest, rest)[1]
    return given.change_to(value)


RULES.add(
    "eigenvalue",
    Rule("largest |1 + λ| of the summed H with the norm folded in is above 1 (P1's plain rule)", _largest_eigenvalue),
)
RULES.add(
    "dominance",
    Rule("the fastest mode of equal tokens outgrows the fastest other mode, all heads, measured attention", _dominance),
)
RULES.add(
    "token_mean",
    Rule("the token mean of the stream grows under I + H, attention averaging all tokens", of_input=_token_mean),
)
RULES.add(
    "attention",
    Rule(
        "t_sim of X + Σ_h A_h X H_h: modes of attention weighted by the energy that real activations put in them; "
        "no bias, MLP or norm after it",
        of_input=_attention,
    ),
)
RULES.add(
    "collapse",
    Rule(
        "t_sim of f(1x̄) + J(1x̄)X̃: the whole block expanded about the point where all tokens equal their mean",
        of_input=_collapse,
    ),
)
RULES.add(
    "jacobian",
    Rule(
        f"t_sim of f(1x̄) + J̄X̃: the same with the block's Jacobian averaged over {JACOBIANS} points on the way from "
        "there to the real tokens; with ever more points it becomes exact",
        of_input=_jacobian,
    ),
)
