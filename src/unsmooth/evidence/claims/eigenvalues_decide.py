"""The eigenvalues of A and H, through 1 + μλ, decide what many layers make of the tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError
from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import Claim, Measured, Section, Source, claim
from unsmooth.evidence.claims._random_layers import ATTENTION, WEIGHTS, condition, generator, layers_to_settle, tokens
from unsmooth.evidence.figure import Figure, Panel, Series, with_intervals
from unsmooth.evidence.finding import Finding, Judgement, Wording, above, judged
from unsmooth.evidence.interval import over_seeds, share
from unsmooth.theory import LIMITS, iterate, outcome, predict
from unsmooth.theory.modes import eigenvalue_distance

# Rounding moves eigenvalues by about 1e-16 times the condition of the eigenvectors (Bauer & Fike): beyond this
# condition, by so much that a distance says nothing about the formula.
CONDITION = 1e6
DISTANCE = 1e-6
AGREEMENT = 0.99
# A token this much shorter than the longest is zero in the limit of X/‖X‖: it has no direction there.
VANISHED = 1e-7


@claim
class EigenvaluesDecide(Claim):
    """Dense eigenvalues against products, and the limit predicted against the limit reached."""

    id: ClassVar[str] = "eigenvalues-decide"
    number: ClassVar[int] = 1
    section: ClassVar[Section] = "identities checked numerically"
    quote: ClassVar[str] = (
        "whether Transformers oversmooth or not depends on the eigenspectrum of their update equations"
    )
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P1", "v2", "abstract")
    reading: ClassVar[str] = (
        "The update X + AXH has the eigenvalues 1 + μλ, with μ of A and λ of H, and those of the largest modulus "
        "decide what many layers lead to: equal tokens, tokens on one line, rank one or two, or no collapse."
    )
    differs: ClassVar[str] = (
        "The sentence is about Transformers. Checked is the model that public reviews describe: one head with a "
        "residual, attention and weights the same in all layers, no norm, no MLP. Its theorems were not at hand; "
        "limits are reconstructed. That is linear algebra, checked numerically."
    )
    would_decide: ClassVar[str] = (
        "Nothing is left to decide about the idealised layer; for Transformers see dominance-predicts-layers."
    )
    for_if: ClassVar[str] = (
        f"the largest distance between the eigenvalues of I + Hᵀ⊗A and the products, relative to the largest modulus, "
        f"is below {DISTANCE:g} over all draws whose eigenvectors have a condition of at most {CONDITION:g}; and the "
        f"95 % interval of the share of draws whose predicted limit is the one reached lies above {AGREEMENT:g}. Draws "
        "that would need more layers than are run, by the gap in modulus alone, are left out beforehand and counted"
    )
    against_if: ClassVar[str] = f"the distance is larger, or the interval of that share lies below {AGREEMENT:g}"

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        """A seed is one draw of every kind of attention with every kind of weights."""
        return tuple(range(bench.pick(1, 12, 100)))

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Draws by kind; predicted and reached limits as a table."""
        most = bench.pick(800, 3000, 3000)
        table: Counter[tuple[str, str]] = Counter()
        left_out: Counter[str] = Counter()
        distances: list[dict[str, float | None]] = []
        for seed in self.seeds(bench):
            distances.append({})
            for kind, attention, h, x in _draws(seed):
                far = spectral_distance(attention, h)
                before = distances[-1].get(kind)
                distances[-1][kind] = before if far is None else max(far, before or 0.0)
                predicted, reached = limits(x, attention, h, most)
                if reached is None:
                    left_out[kind if predicted else "not diagonalisable"] += 1
                else:
                    table[str(predicted), reached] += 1
        return {
            "most_layers": most,
            "distance": distances,
            "table": {name: {to: table[name, to] for to in LIMITS if table[name, to]} for name in LIMITS},
            "left_out": dict(left_out),
        }

    def judge(self, measured: Measured) -> Judgement:
        """A distance and a share; the rest is reported."""
        table: dict[str, dict[str, int]] = measured["table"]
        decided = sum(sum(row.values()) for row in table.values())
        agreed = share(sum(row.get(name, 0) for name, row in table.items()), decided)
        largest = [max(far for far in row.values() if far is not None) for row in measured["distance"]]
        reached = Counter({to: sum(row.get(to, 0) for row in table.values()) for to in LIMITS})
        common, often = reached.most_common(1)[0]
        left = sum(measured["left_out"].values())
        findings = [
            Finding("predicted limit is the one reached, share of draws", agreed, above(agreed, AGREEMENT)),
            Finding(
                "largest relative distance of the eigenvalues to 1 + μλ, per seed",
                over_seeds(largest),
                "for" if max(largest) < DISTANCE else "against",
            ),
            Finding(f'share that saying "{common}" of every draw would get right', share(often, decided)),
            Finding("share of draws left out because their gap is too small", share(left, left + decided)),
        ]
        kinds = ", ".join(f"{name} {count}" for name, count in reached.most_common() if count)
        words = f"The eigenvalues named the limit in {agreed.value:.2%} of {decided} draws ({kinds})."
        if not reached["angle convergence"]:
            words += " Equal directions of unequal lengths never came up: only the mode of equal tokens has one sign."
        return judged(findings, words)

    def figure(self, measured: Measured) -> Figure:
        """Distance by kind of attention, agreement by limit."""
        table: dict[str, dict[str, int]] = measured["table"]
        drawn = {name: share(row.get(name, 0), sum(row.values())) for name, row in table.items() if row}
        right = with_intervals("share", list(drawn), drawn.values(), "points")
        found = {kind: [row.get(kind) for row in measured["distance"]] for kind in ATTENTION}
        far = {kind: max(one for one in values if one is not None) for kind, values in found.items() if any(values)}
        largest = Series("largest over draws", list(far), list(far.values()), mark="points")
        return Figure(
            "Left: how often the limit that the eigenvalues predict is reached, by predicted limit, with 95 % "
            "intervals. Right: how far the eigenvalues of the whole layer are from 1 + μλ; the line is the rule's.",
            [
                Panel("predicted limit is reached", "predicted limit", "share of draws", [right], reference=AGREEMENT),
                Panel(
                    "eigenvalues of the layer against 1 + μλ",
                    "attention",
                    "relative distance",
                    [largest],
                    log_y=True,
                    reference=DISTANCE,
                ),
            ],
        )


def spectral_distance(attention: Tensor, h: Tensor) -> float | None:
    """From the eigenvalues of I + Hᵀ⊗A to the products 1 + μλ, relative to the largest modulus.

    Returns:
        None where the eigenvectors are too ill-conditioned to tell.

    >>> spectral_distance(torch.eye(2), torch.zeros(3, 3))
    0.0
    """
    if condition(attention) * condition(h) > CONDITION:
        return None
    a, b = attention.double().numpy(), h.double().numpy()
    whole = np.linalg.eigvals(np.eye(len(a) * len(b)) + np.kron(b.T, a)).astype(np.complex128)
    products = 1.0 + np.outer(np.linalg.eigvals(a), np.linalg.eigvals(b)).ravel()
    return eigenvalue_distance(whole, products.astype(np.complex128)) / float(np.abs(products).max())


def limits(x: Tensor, attention: Tensor, h: Tensor, most_layers: int) -> tuple[str | None, str | None]:
    """The limit predicted and the one reached.

    Whether `most_layers` are enough is asked of the gap between the largest modulus and the next, before any layer is
    run: the second is None where they are not, and both are None where A or H is not diagonalisable.
    """
    try:
        predicted = predict(attention, h)
    except UnsmoothError:
        return None, None
    depth = layers_to_settle(predicted.gap, condition(attention) * condition(h))
    if depth is None or depth > most_layers:
        return predicted.limit, None
    run = iterate(x, attention, h, depth=depth)
    length_N1 = run.x_ND.norm(dim=1, keepdim=True)
    # A mode that is zero on a token leaves it ever shorter beside the others, pointing anywhere.
    end_ND = torch.where(length_N1 < VANISHED * length_N1.max(), 0.0, run.x_ND)
    return predicted.limit, outcome(replace(run, states_LND=end_ND.unsqueeze(0))).limit


def _draws(seed: int) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    for i, (kind, draw_attention) in enumerate(ATTENTION.items()):
        for j, draw_weights in enumerate(WEIGHTS.values()):
            random = generator(seed, i, j)
            attention, h = draw_attention(random), draw_weights(random)
            yield kind, attention, h, tokens(random, len(attention), len(h))
