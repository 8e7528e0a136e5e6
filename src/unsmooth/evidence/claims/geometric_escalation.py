"""P2's escalation: with random weights, attention with residual makes tokens alike, at a rate known in advance."""

from __future__ import annotations

from typing import Any, ClassVar

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import Claim, Measured, Section, Source, claim
from unsmooth.evidence.escalation import Cell, Stack, against_the_norm, decay, one_step
from unsmooth.evidence.figure import Figure, Panel, Series
from unsmooth.evidence.finding import Finding, Judgement, Outcome, Wording, above, judged, together, within
from unsmooth.evidence.interval import Interval, over_seeds

MODULI = (0.0, 0.3, 0.6, 0.9)
SIMILARITIES = (0.05, 0.3, 0.6, 0.9)
# Where differences shrink at the rate of the prediction; the others are reported.
STACKS = (Stack("lazy", 0.0), Stack("lazy", 0.5), Stack("lazy", 0.8), Stack("cyclic", 0.5), Stack("softmax", 1.0))
OTHERS = (
    Stack("lazy", 0.5, residual=False),
    Stack("softmax", 1.0, residual=False),
    Stack("lazy", 0.5, norm=True),
    Stack("softmax", 1.0, norm=True),
)
SLACKS = 2
RATE, HALVES = (0.9, 1.1), (0.8, 1.25)


@claim
class GeometricEscalation(Claim):
    """Three parts: it escalates, at least as fast as the bound, and geometrically over depth.

    The bound is one of a ratio of expectations. The mean of the ratio itself lies beneath by a term of order 1/d,
    `escalation.slack`; twice that is allowed for, so that terms of higher order do not decide. Attention from random
    logits is not normal, so that |λ₂| bounds no single step of it; with tokens that do not know the map it makes no
    difference, and with those that do it is reported.
    """

    id: ClassVar[str] = "geometric-escalation"
    number: ClassVar[int] = 4
    section: ClassVar[Section] = "identities checked numerically"
    quote: ClassVar[str] = "token similarity provably escalates at a linear rate"
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P2", "v2", "abstract")
    reading: ClassVar[str] = (
        "With random zero-mean weights, X + PXW makes tokens more alike on average, by a share of the remaining "
        "diversity of at least s(1 − |λ₂|²)/2 with s = t_sim(X), so that t_div falls geometrically with depth."
    )
    differs: ClassVar[str] = (
        "A linear rate is read as that of linear convergence: t_div falls by a factor a layer. The escalation rate "
        "and its bound are reconstructed from a public summary, which says what they depend on; the proof was not "
        "at hand. No norm, no MLP, one head."
    )
    would_decide: ClassVar[str] = (
        "Nothing is left to decide about the idealised layer; for networks see rate-in-networks."
    )
    for_if: ClassVar[str] = (
        "in every cell of the grid (tokens, |λ₂| or softmax of random logits, s) the 95 % interval over seeds of the "
        "mean escalation rate lies above 0, and that of its excess over s(1 − |λ₂|²)/2 above minus twice the "
        "second-order term of a ratio at that width, 6s²(1 + |λ₂|²)/(d(2s + (1 + |λ₂|²)(1 − s))³); and in every stack "
        "with residual the intervals of two ratios, slope of log t_div over log((1 + |λ₂|²)/2) and slope in the "
        "second half of the layers over that in the first, lie within [0.9, 1.1] and [0.8, 1.25]"
    )
    against_if: ClassVar[str] = "one of these intervals lies wholly on the other side"

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        """Of tokens, weights and maps."""
        return tuple(range(bench.pick(3, 8, 12)))

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Mean rates of single steps by cell, and decay over depth by stack, one number per seed."""
        width, draws = bench.pick((48, 16), (128, 32), (256, 64))
        sizes, depth_tokens = bench.pick((16,), (16, 64), (16, 64, 256)), bench.pick(16, 64, 64)
        seeds = self.seeds(bench)
        moduli = bench.pick(MODULI[::3], MODULI, MODULI)
        maps = [("lazy", second) for second in moduli] + [("cyclic", second) for second in moduli if second]
        cells = [
            Cell(kind, value, tokens, similarity)
            for tokens in sizes
            for kind, value in [*maps, ("softmax", 1.0)]
            for similarity in SIMILARITIES
        ]
        return {
            "width": width,
            "cells": one_step(cells, seeds, width, draws),
            "stacks": [decay(stack, seeds, width, depth_tokens) for stack in (*STACKS, *OTHERS)],
            "against_the_norm": against_the_norm(seeds, width, draws),
        }

    def judge(self, measured: Measured) -> Judgement:
        """Every cell and every stack has to agree; of the cells the lowest is shown."""
        cells, stacks = measured["cells"], [one for one in measured["stacks"] if one["asked"]]
        found = [
            _lowest("mean escalation rate", cells, [over_seeds(cell["rate"]) for cell in cells], 0),
            _lowest(
                "mean escalation rate minus its bound, plus twice the slack of this width",
                cells,
                [over_seeds([value + SLACKS * cell["slack"] for value in cell["excess"]]) for cell in cells],
                0,
            ),
        ]
        for one in stacks:
            rate, halves = over_seeds(one["rate"]), over_seeds(one["halves"])
            found.append(Finding(f"slope of log t_div over its prediction, {one['name']}", rate, within(rate, *RATE)))
            found.append(Finding(f"slope, second half over first, {one['name']}", halves, within(halves, *HALVES)))
        found += _reported(measured)
        worst = min(min(one["fit"]) for one in stacks)
        beneath = sum(over_seeds(cell["excess"]).high < 0 for cell in cells)
        words = (
            f"Tokens grow more alike in all {len(cells)} cells"
            if found[0].outcome == "for"
            else "Tokens do not surely grow more alike in every cell"
        )
        return judged(
            found,
            f"{words}; {beneath} of {len(cells)} lie beneath the bound before the slack of the width. A line fits "
            f"log t_div over depth with R² of {worst:.3f} at worst.",
        )

    def figure(self, measured: Measured) -> Figure:
        """Rates against similarity with their prediction, and the decay over depth."""
        tokens = max(cell["tokens"] for cell in measured["cells"])
        lazy = [cell for cell in measured["cells"] if cell["tokens"] == tokens and cell["map"] == "lazy"]
        rates = []
        for second in sorted({cell["value"] for cell in lazy}):
            chosen = sorted((cell for cell in lazy if cell["value"] == second), key=lambda cell: cell["similarity"])
            x, intervals = [cell["similarity"] for cell in chosen], [over_seeds(cell["rate"]) for cell in chosen]
            low, high = [one.low for one in intervals], [one.high for one in intervals]
            name = f"|λ₂| = {second:g}"
            rates.append(Series(name, x, [one.value for one in intervals], low, high, mark="points"))
            rates.append(Series(f"{name}, closed form", x, [cell["closed"] for cell in chosen], mark="dashed"))
        curves = [
            Series(one["name"], list(range(len(one["curve"]))), one["curve"], mark="line" if one["asked"] else "dashed")
            for one in measured["stacks"]
        ]
        return Figure(
            "Share of the remaining diversity that one random layer takes, and diversity over depth, one seed of each.",
            [
                Panel(f"one layer, {tokens} tokens", "t_sim before it", "mean escalation rate", rates, reference=0.0),
                Panel("many layers", "layer", "t_div", curves, log_y=True),
            ],
        )


def _lowest(what: str, cells: list[dict[str, Any]], intervals: list[Interval], threshold: float) -> Finding:
    """The interval that reaches lowest stands for all; the outcome is of all."""
    outcomes: list[Outcome] = [above(interval, threshold) for interval in intervals]
    place = min(range(len(cells)), key=lambda index: intervals[index].low)
    cell = cells[place]
    where = f"{cell['map']} {cell['value']:g}, {cell['tokens']} tokens, s = {cell['similarity']:g}"
    what = f"{what}, lowest of {len(cells)} cells ({where})"
    return Finding(what, intervals[place], together(outcomes), intervals=len(cells))


def _reported(measured: Measured) -> list[Finding]:
    """What no outcome rests on."""
    off = [max(abs(sum(cell["rate"]) / len(cell["rate"]) / cell["closed"] - 1) for cell in measured["cells"])]
    found = [Finding("mean escalation rate over its closed form, minus 1, farthest cell", over_seeds(off))]
    found += [
        Finding(f"slope of log t_div over its prediction, {one['name']}", over_seeds(one["rate"]))
        for one in measured["stacks"]
        if not one["asked"]
    ]
    rest = measured["against_the_norm"]
    found.append(Finding("norm on differences of softmax of logits of std 3, 16 tokens", over_seeds(rest["norm"])))
    found.append(Finding("|λ₂| of the same", over_seeds(rest["second"])))
    for kind in ("any", "chosen"):
        what = f"mean escalation rate minus the bound there, {kind} direction of differences"
        found.append(Finding(what, over_seeds(rest[kind])))
    return found
