"""The sign of H's spectrum says whether the token mean dominates: for one head without a norm, always."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, log
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import Claim, Measured, Section, Source, claim
from unsmooth.evidence.claims._one_layer import branch, definite, peaked_or_flat, turning, unit_stream
from unsmooth.evidence.claims._random_layers import (
    ATTENTION,
    basis,
    condition,
    generator,
    layers_to_settle,
    new_seed,
    real_spectrum,
    tokens,
)
from unsmooth.evidence.figure import Figure, Panel, Series, with_intervals
from unsmooth.evidence.finding import Finding, Judgement, Wording, judged, never
from unsmooth.evidence.interval import Interval, over_seeds, share
from unsmooth.spectra import flip_scale, fold_pre_norm
from unsmooth.theory import iterate, modes, outcome, random_attention, two_group_attention

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


HEADS = (2, 4, 8)
FEEDS = (0.0, 1.0, 2.0, 4.0)
LAYERS, EARLY = 48, 12
ALONE = "one of the opposed heads alone"


def fed(turn_DD: Tensor, values: Tensor, feed: float) -> Tensor:
    """H with these eigenvalues, in which every direction also feeds the next with weight `feed`: far from normal.

    >>> fed(torch.eye(2), torch.tensor([-1.0, -0.5]), 3.0)
    tensor([[-1.0000,  3.0000],
            [ 0.0000, -0.5000]])
    """
    steps = torch.diag(torch.ones(len(values) - 1, dtype=values.dtype), 1)
    return turn_DD.T @ (torch.diag(values) + feed * steps) @ turn_DD


def random_heads(random: Generator, heads: int) -> tuple[Tensor, Tensor]:
    """Maps (heads, 6, 6) and weights (heads, 3, 3), each head with positive eigenvalues in a basis of its own."""
    maps = torch.stack([random_attention(6, seed=new_seed(random), logit_std=3.0) for _ in range(heads)])
    bases = torch.stack([tokens(random, 3, 3) for _ in range(heads)])
    values = torch.from_numpy(random.uniform(0.02, 0.3, size=(heads, 3)))
    return maps, torch.linalg.solve(bases, values.unsqueeze(-1) * bases)


def opposed_heads(random: Generator) -> tuple[Tensor, Tensor]:
    """Two heads with positive eigenvalues that work against each other on the mean only.

    The first attends within two groups and has H = D + N, with N feeding each direction into the next; the second
    attends across and has D' − Nᵀ. On equal tokens N − Nᵀ only turns; on the difference of the groups, which the second
    map negates, the two add up to the symmetric N + Nᵀ, which grows.
    """
    maps = [two_group_attention(3, 3, seed=new_seed(random), contrast=contrast) for contrast in (-4.0, 4.0)]
    turn, values = basis(random, 4), torch.from_numpy(random.uniform(0.02, 0.3, size=(2, 4)))
    return torch.stack(maps), torch.stack([fed(turn, values[0], 1.0), fed(turn, values[1], -1.0).T])


def count_heads(seeds: Sequence[int], draws: int) -> dict[str, list[int]]:
    """By kind: in how many draws the mean does not dominate although every head's spectrum is positive, of so many."""
    found = {**{f"{heads} random heads": [0, 0] for heads in HEADS}, "2 opposed heads": [0, 0], ALONE: [0, 0]}
    for random in (generator(seed, 4, index) for seed in seeds for index in range(draws)):
        for heads in HEADS:
            _count(found[f"{heads} random heads"], *random_heads(random, heads))
        maps, weights = opposed_heads(random)
        _count(found["2 opposed heads"], maps, weights)
        for one, h in zip(maps, weights, strict=True):
            _count(found[ALONE], one, h)
    return found


def _count(counts: list[int], maps: Tensor, weights: Tensor) -> None:
    counts[0] += not modes(maps, weights).mean_dominates
    counts[1] += 1


def count_far_from_normal(seeds: Sequence[int], draws: int) -> dict[str, Any]:
    """Spectra in [−1, 0) by how strongly directions feed each other: t_sim after 12 layers against the input's.

    Returns:
        "higher": [in how many draws it is higher, of so many] by feed; "curve": mean t_sim by layer, by feed.
    """
    higher = {f"{feed:g}": [0, 0] for feed in FEEDS}
    curves = {f"{feed:g}": torch.zeros(LAYERS + 1, dtype=torch.float64) for feed in FEEDS}
    for random in (generator(seed, 5, index) for seed in seeds for index in range(draws)):
        attention = random_attention(12, seed=new_seed(random), logit_std=float(random.uniform(0.3, 3.0)))
        turn, values = basis(random, 8), torch.from_numpy(random.uniform(-1.0, -0.02, size=8))
        x = tokens(random, 12, 8)
        for feed in FEEDS:
            similarity = iterate(x, attention, fed(turn, values, feed), depth=LAYERS).token_similarity
            higher[f"{feed:g}"][0] += bool(similarity[EARLY] > similarity[0])
            higher[f"{feed:g}"][1] += 1
            curves[f"{feed:g}"] += similarity / (len(seeds) * draws)
    return {"higher": higher, "curve": {feed: curve.tolist() for feed, curve in curves.items()}}
