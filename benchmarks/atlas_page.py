"""docs/atlas: the curves of all models in panels, and sentences that are counted from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from scipy.stats import spearmanr

from benchmarks.rivals.page import table
from benchmarks.trained_models.findings import common_ground, fact, peak, random_of
from benchmarks.trained_models.measure import Measured
from unsmooth.report.charts import FAINT, INK, chart_config
from unsmooth.report.series import number
from unsmooth.report.shell import import_extra
from unsmooth.scanning import Row, Scan

if TYPE_CHECKING:
    import altair

TRAINED, RANDOM = "trained", "random weights"
COLUMNS = 4


def panels(scans: Sequence[Scan], metric: str) -> altair.FacetChart:
    """One panel per model: trained and random weights by share of the depth, with their 95 % intervals."""
    alt = import_extra("altair")
    rows = [
        row
        for scan in scans
        for weights, one in ((TRAINED, scan), (RANDOM, random_of(scan)))
        for row in _panel_rows(scan.name, weights, one.curve(metric))
    ]
    colour = alt.Color("weights:N", legend=alt.Legend(title=None, orient="top")).scale(
        domain=[TRAINED, RANDOM], range=["#0072B2", "#999999"]
    )
    base = alt.Chart().encode(
        x=alt.X("depth:Q", title="share of the depth").axis(format="%", tickCount=3), color=colour
    )
    height = alt.Y("mean:Q", title=metric).scale(zero=False)
    layered = alt.layer(
        base.mark_area(opacity=0.25).encode(y=alt.Y("low:Q", title=metric), y2="high:Q"),
        base.mark_line(strokeWidth=2).encode(y=height),
        data=alt.Data(values=rows),
    ).properties(width=150, height=110)
    names = [scan.name for scan in scans]
    return (
        layered.facet(facet=alt.Facet("model:N", title=None, sort=names), columns=COLUMNS)
        .resolve_scale(y="independent" if metric == "effective_rank" else "shared")
        .configure(**chart_config(INK, FAINT, "white"))
    )


def _panel_rows(model: str, weights: str, curve: Sequence[Row]) -> list[dict[str, Any]]:
    last = curve[-1].layer
    return [
        {
            "model": model,
            "weights": weights,
            "depth": row.layer / last,
            "mean": number(row.mean),
            "low": number(row.ci_low),
            "high": number(row.ci_high),
        }
        for row in curve
    ]


def page(all_found: Sequence[Measured], metrics: Sequence[str]) -> str:
    """The Markdown page."""
    scans = [found.scan for found in all_found]
    parts = [
        f"# Atlas: {len(scans)} trained models",
        "Every trained model that could be had without an account, and the three that come with the package, each on "
        "what it reads. Every number and sentence here is computed by `python -m benchmarks.atlas` (`make atlas`) from "
        "the scans; curves with intervals are in [the json](../../benchmarks/results/atlas.json).",
        *(f"![{metric} by share of the depth, one panel per model]({metric}.svg)" for metric in metrics),
        "Blue: trained. Grey: the same architecture with random weights on the same tokens. Bands: 95 % intervals of "
        "the mean over sequences.",
        table(HEADER, [_row(scan) for scan in scans]),
        "Layer 0 is what enters the first block; in brackets the 95 % interval of the mean over sequences.",
        "## What they have in common",
        "\n".join(f"- {line}" for line in (*common_ground(all_found), *more_ground(scans))),
        "## What each scan says",
        "\n".join(f"- **{scan.name}**, {fact(scan, 'reads')}: {scan.sentence}" for scan in scans),
        f"Versions: {', '.join(f'{name} {value}' for name, value in scans[0].manifest['versions'].items())}.",
    ]
    return "\n\n".join(parts) + "\n"


HEADER = (
    "model",
    "what",
    "layers",
    "norm",
    "tokens in sequences",
    "mean cosine, first → last",
    "random, last",
    "t_sim",
)


def _row(scan: Scan) -> list[str]:
    curve, data = scan.curve(), scan.manifest["data"]
    similar = scan.curve("token_similarity")
    return [
        scan.name,
        fact(scan, "about"),
        str(scan.layers[-1]),
        fact(scan, "norm"),
        f"{data['tokens']:,} in {data['sequences']}",
        f"{curve[0].mean:.3f} → {_with_interval(curve[-1])}",
        _with_interval(random_of(scan).curve()[-1]),
        f"{similar[0].mean:.3f} → {similar[-1].mean:.3f}",
    ]


def more_ground(scans: Sequence[Scan]) -> list[str]:
    """Claims about groups of models, each counted."""
    return [
        _by_norm(scans),
        _last_step(scans),
        _not_straight(scans),
        _rank_follows(scans),
    ]


def _by_norm(scans: Sequence[Scan]) -> str:
    """How many grow alike in each placement of norms."""
    told = []
    for norm in sorted({fact(scan, "norm") for scan in scans}):
        members = [scan for scan in scans if fact(scan, "norm") == norm]
        grown = count(members, lambda scan: scan.changes["mean_cosine"].ci_low > 0)
        ends = sorted(scan.curve()[-1].mean for scan in members)
        told.append(
            f"{norm}: {grown} of {len(members)} end more alike than they begin, with a last mean cosine from "
            f"{ends[0]:.2f} to {ends[-1]:.2f}"
        )
    return f"By where blocks normalise: {'; '.join(told)}."


def _last_step(scans: Sequence[Scan]) -> str:
    """Where the largest change of one layer is."""
    largest = {scan.name: largest_step(scan.curve()) for scan in scans}
    lasts = [scan.name for scan in scans if largest[scan.name] == scan.layers[-1]]
    firsts = [scan.name for scan in scans if largest[scan.name] == 1]
    return (
        f"The largest change of the mean cosine in one layer is made by the first block in {len(firsts)} of "
        f"{len(scans)} and by the last in {len(lasts)}{_in_brackets(lasts)}."
    )


def largest_step(curve: Sequence[Row]) -> int:
    """The layer whose block changes the mean most."""
    steps = {after.layer: abs(after.mean - before.mean) for before, after in pairwise(curve)}
    return max(steps, key=lambda layer: steps[layer])


def _not_straight(scans: Sequence[Scan]) -> str:
    """How many go one way only."""

    def one_way(scan: Scan) -> bool:
        means = [row.mean for row in scan.curve()]
        steps = [after - before for before, after in pairwise(means)]
        return all(step >= 0 for step in steps) or all(step <= 0 for step in steps)

    straight = [scan.name for scan in scans if one_way(scan)]
    high = [scan.name for scan in scans if peak(scan).mean > 0.9]
    return (
        f"The mean cosine rises or falls at every single layer in {len(straight)} of {len(scans)}"
        f"{_in_brackets(straight)}; it exceeds 0.9 at some layer in {len(high)}{_in_brackets(high)}."
    )


def _rank_follows(scans: Sequence[Scan]) -> str:
    """Whether effective rank falls where the mean cosine rises."""
    found = {
        scan.name: float(
            spearmanr([row.mean for row in scan.curve()], [row.mean for row in scan.curve("effective_rank")]).statistic
        )
        for scan in scans
    }
    negative = [name for name, value in found.items() if value < 0]
    low, high = min(found, key=lambda name: found[name]), max(found, key=lambda name: found[name])
    return (
        f"Over layers, the effective rank falls where the mean cosine rises (rank correlation below 0) in "
        f"{len(negative)} of {len(scans)}, from {found[low]:.2f} ({low}) to {found[high]:.2f} ({high})."
    )


def count(scans: Sequence[Scan], holds: Callable[[Scan], bool]) -> int:
    """For how many scans something holds."""
    return sum(map(holds, scans))


def _in_brackets(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _with_interval(row: Row) -> str:
    return f"{row.mean:.3f} [{row.ci_low:.3f}, {row.ci_high:.3f}]"
