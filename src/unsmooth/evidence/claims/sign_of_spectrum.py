"""The sign of H's spectrum says whether the token mean dominates: for one head without a norm, always."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, log
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import Claim, Measured, Section, Source, claim
from unsmooth.evidence.claims._one_layer import branch, definite, peaked_or_flat, turning, unit_stream
from unsmooth.evidence.claims._random_layers import (
    ATTENTION,
    condition,
    generator,
    layers_to_settle,
    real_spectrum,
    tokens,
)
from unsmooth.evidence.claims._where_signs_fail import EARLY, count_far_from_normal, count_heads
from unsmooth.evidence.figure import Figure, Panel, Series, with_intervals
from unsmooth.evidence.finding import Finding, Judgement, Wording, judged, never
from unsmooth.evidence.interval import Interval, over_seeds, share
from unsmooth.spectra import flip_scale, fold_pre_norm
from unsmooth.theory import iterate, modes, outcome

Sign = Literal["negative", "positive"]
SPECTRA: dict[Sign, tuple[float, float]] = {"negative": (-1.0, -0.02), "positive": (0.02, 1.0)}
SKEWS = (0.0, 1.0)
SCALES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
GRID = tuple(round(0.1 * step, 1) for step in range(-22, 16))
TOKENS, DIM = 12, 24


@claim
class SignOfSpectrum(Claim):
    """Counted by eigenvalues and by running layers; what norms, heads and skewed weights change is reported."""

    id: ClassVar[str] = "sign-of-spectrum"
    number: ClassVar[int] = 2
    section: ClassVar[Section] = "identities checked numerically"
    quote: ClassVar[str] = "A layer whose H has its eigenvalues in [−1, 0) is not a low-pass filter."
    wording: ClassVar[Wording] = "reconstructed"
    source: ClassVar[Source] = Source("P1", "", "a sufficient condition as public reviews of the first version give it")
    reading: ClassVar[str] = (
        "With one head and no norm, the token mean never dominates where the spectrum of H lies in [−1, 0), and "
        "always where it is positive; a norm before the branch makes this a matter of the stream's scale."
    )
    differs: ClassVar[str] = (
        "The part about positive spectra and the one about norms are ours. Many heads, and weights far from "
        "normal, are outside of it, and break it."
    )
    would_decide: ClassVar[str] = (
        "Nothing is left to decide about the idealised layer; for trained models see dominance-predicts-layers."
    )
    for_if: ClassVar[str] = (
        "there is no violation, of either sign, by the eigenvalues of the layer, none by running it until its margin "
        "must have settled it, and none of the closed form by which one pre-norm layer turns at one scale at most; and "
        "the 95 % intervals of the five shares of violations lie below 0.01"
    )
    against_if: ClassVar[str] = "there is a violation of any of the five"

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        """A seed is two draws of every kind of attention with either sign."""
        return tuple(range(bench.pick(1, 10, 60)))

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Counts, and what is drawn."""
        seeds = self.seeds(bench)
        return {
            "signs": count_signs(seeds, most_layers=bench.pick(500, 3000, 3000)),
            "margins": margins(seeds),
            "pre_norm": pre_norm(seeds, draws=bench.pick(3, 5, 5)),
            "heads": count_heads(seeds, draws=bench.pick(3, 5, 5)),
            "far_from_normal": count_far_from_normal(seeds, draws=bench.pick(3, 5, 5)),
        }

    def judge(self, measured: Measured) -> Judgement:
        """Five counts of violations; the rest is reported."""
        says = {
            "negative": "spectrum in [−1, 0), yet the mean dominates",
            "positive": "positive spectrum, yet the mean does not dominate",
        }
        counted = [
            never(f"{says[sign]}, {how}, share of draws", measured["signs"][sign][key], measured["signs"][sign][of])
            for sign in SPECTRA
            for how, key, of in (("by eigenvalues", "by_eigenvalues", "drawn"), ("by running", "by_running", "run"))
        ]
        normed = measured["pre_norm"]
        counted.append(
            never("one pre-norm layer turns elsewhere than the closed form says", normed["missed"], normed["checked"])
        )
        tries, failed = (sum(one.interval.count for one in counted), _violations(counted))
        words = f"{failed} violations in {tries} tries. {_breaks(measured)}"
        return judged([*counted, *_reported(measured)], words)

    def figure(self, measured: Measured) -> Figure:
        """Margin by eigenvalue, direction by scale, and the trap."""
        margin, normed, skewed = measured["margins"], measured["pre_norm"], measured["far_from_normal"]
        bounds = [Series(f"{which} over maps", margin["value"], margin[which]) for which in ("highest", "lowest")]
        changes = [_by_scale(f"{sign} spectrum", normed["change"][sign]) for sign in SPECTRA]
        curves = [Series(f"feed {feed}", list(range(len(y))), y) for feed, y in skewed["curve"].items()]
        return Figure(
            "Left: how much faster the mean grows than the fastest other mode, for H = λI, over all maps drawn. "
            "Middle: what one pre-norm layer does to t_sim, by the stream's standard deviation. Right: spectra in "
            "[−1, 0) whose directions feed each other: t_sim can rise for many layers first.",
            [
                Panel("one head, no norm", "λ", "log growth of mean over rest", bounds, reference=0.0),
                Panel("pre-norm", "scale of the stream", "change of t_sim", changes, log_x=True, reference=0.0),
                Panel("negative spectra far from normal", "layer", "t_sim", curves),
            ],
        )


def count_signs(seeds: Sequence[int], most_layers: int) -> dict[str, dict[str, int]]:
    """Violations by sign: of the layer's own eigenvalues (dense, not as products), and of what running it leads to."""
    found = {sign: dict.fromkeys(("drawn", "by_eigenvalues", "run", "by_running", "left_out"), 0) for sign in SPECTRA}
    for sign, attention, h, x in _layers(seeds):
        counts, exact = found[sign], modes(attention, h)
        counts["drawn"] += 1
        counts["by_eigenvalues"] += exact.mean_dominates != (sign == "positive")
        # Where λ = −1 and nothing else, the mean is gone after one layer.
        margin = abs(log(max(exact.mean_modulus, 1e-300) / exact.rest_modulus))
        depth = layers_to_settle(margin, condition(attention) * condition(h))
        if depth is None or depth > most_layers:
            counts["left_out"] += 1
            continue
        counts["run"] += 1
        reached = outcome(iterate(x, attention, h, depth=depth)).input_convergence
        counts["by_running"] += reached != (sign == "positive")
    return {str(sign): counts for sign, counts in found.items()}


def margins(seeds: Sequence[int]) -> dict[str, list[float]]:
    """Lowest and highest log |1 + λ| − log max |1 + μλ| over all maps, μ being their other eigenvalues, by λ."""
    rows = []
    for attention in (draw(generator(seed, 2, kind)) for seed in seeds for kind, draw in enumerate(ATTENTION.values())):
        values = np.linalg.eigvals(attention.numpy())
        others = np.delete(values, np.abs(values - 1.0).argmin())
        grid = np.array([value for value in GRID if abs(value + 1.0) > 1e-9])
        rows.append(np.log(np.abs(1 + grid)) - np.log(np.abs(1 + np.outer(others, grid)).max(axis=0)))
    stacked = np.stack(rows)
    return {"value": grid.tolist(), "lowest": stacked.min(axis=0).tolist(), "highest": stacked.max(axis=0).tolist()}


def pre_norm(seeds: Sequence[int], draws: int) -> dict[str, Any]:
    """One pre-norm layer at many scales of the stream.

    Returns:
        "change": t_sim's, by sign and seed, at `SCALES`; "missed" of "checked": draws that at some scale go another way
        than the closed form says; "log_ratio": per seed, mean log of the scale at which draws turn over the one that
        eigenvalues alone give; "turns": [negative draws that fall in a large stream and rise in a small one, of so
        many].
    """
    change: dict[str, list[list[float]]] = {sign: [] for sign in SPECTRA}
    missed = checked = 0
    ratios, turns = [], [0, 0]
    for seed in seeds:
        sums, logs = {sign: np.zeros(len(SCALES)) for sign in SPECTRA}, []
        for index in range(draws):
            random = generator(seed, 3, index)
            attention, x = peaked_or_flat(random, TOKENS), unit_stream(random, TOKENS, DIM)
            for sign, (low, high) in SPECTRA.items():
                h = definite(random, DIM, low, high)
                closed, found = turning(x, branch(x, attention, h)), _changes(x, attention, h)
                sums[sign] += np.array(found) / draws
                missed += any(closed.rises(s) != (one > 0) for s, one in zip(SCALES, found, strict=True))
                checked += 1
                if sign == "negative":
                    happens = closed.of_sign < 0 < closed.of_size
                    turns = [turns[0] + happens, turns[1] + 1]
                    logs += [log(closed.scale / _by_eigenvalues(attention, h))] if happens else []
        for sign in SPECTRA:
            change[sign].append(sums[sign].tolist())
        ratios += [float(np.mean(logs))] if logs else []
    return {"change": change, "missed": missed, "checked": checked, "log_ratio": ratios, "turns": turns}


def _changes(x: Tensor, attention: Tensor, h: Tensor) -> list[float]:
    runs = (iterate(scale * x, attention, h, depth=1, norm="pre").token_similarity for scale in SCALES)
    return [float(after - before) for before, after in runs]


def _by_eigenvalues(attention: Tensor, h: Tensor) -> float:
    """The σ at which the mean stops to dominate, from the eigenvalues of the folded H and the lowest of A."""
    values = torch.linalg.eigvals(fold_pre_norm(h, None, centred=True, scale=1.0))
    lowest = float(torch.linalg.eigvals(attention).real.min())
    found = flip_scale(values, lowest)
    assert found is not None, "the spectrum is negative"
    return found


def _layers(seeds: Sequence[int]) -> Iterator[tuple[Sign, Tensor, Tensor, Tensor]]:
    for seed in seeds:
        for kind, draw in enumerate(ATTENTION.values()):
            for number, (sign, (low, high)) in enumerate(SPECTRA.items()):
                for skew in SKEWS:
                    random = generator(seed, 1, kind, number, int(skew))
                    attention, h = draw(random), real_spectrum(low, high, skew=skew)(random)
                    yield sign, attention, h, tokens(random, len(attention), len(h))


def _reported(measured: Measured) -> list[Finding]:
    normed, higher = measured["pre_norm"], measured["far_from_normal"]["higher"]
    findings = [Finding("negative draws that turn with the scale of a pre-norm stream", share(*normed["turns"]))]
    if normed["log_ratio"]:
        findings.append(
            Finding("log of that scale over the one that eigenvalues give, per seed", over_seeds(normed["log_ratio"]))
        )
    findings += [
        Finding(f"{kind} of positive spectrum, and the mean does not dominate", share(*counts))
        for kind, counts in measured["heads"].items()
    ]
    return findings + [
        Finding(f"spectrum in [−1, 0), feed {feed}: t_sim higher after {EARLY} layers", share(*counts))
        for feed, counts in higher.items()
    ]


def _breaks(measured: Measured) -> str:
    higher = {feed: share(*counts).value for feed, counts in measured["far_from_normal"]["higher"].items()}
    feed = max(higher, key=lambda one: higher[one])
    opposed = share(*measured["heads"]["2 opposed heads"]).value
    ratio = measured["pre_norm"]["log_ratio"]
    said = (
        f"turns at {exp(sum(ratio) / len(ratio)):.2f} times the scale that eigenvalues give" if ratio else "never turns"
    )
    return (
        f"Where it ends: a negative pre-norm layer {said}; two heads made to oppose each other let the mean lose in "
        f"{opposed:.0%} of draws though each is positive; and negative spectra far from normal have t_sim higher after "
        f"{EARLY} layers in up to {higher[feed]:.0%}."
    )


def _violations(counted: Sequence[Finding]) -> int:
    return sum(round(one.interval.value * one.interval.count) for one in counted)


def _by_scale(name: str, per_seed: Sequence[Sequence[float]]) -> Series:
    intervals: list[Interval] = [over_seeds(list(values)) for values in zip(*per_seed, strict=True)]
    return with_intervals(name, list(SCALES), intervals)
