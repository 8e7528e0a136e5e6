"""One HTML file that holds everything: numbers, definitions, chart runtime. It never asks a network for anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unsmooth.errors import UnsmoothError
from unsmooth.numbers import Precision, spoken
from unsmooth.report.charts import chart_config, chart_svg, draw, layer_chart
from unsmooth.report.profiles import profile_pictures
from unsmooth.report.series import DrawnScan, chance_levels, measured, number, printable, series_of
from unsmooth.report.shell import PAGE_FONT, import_extra, page_html, resource, runtime, script_json, write_page
from unsmooth.report.why.page import parts_of

if TYPE_CHECKING:
    from unsmooth.explaining.result import Explanation
    from unsmooth.scanning.result import Confound, MetricCard, Scan


_LARGEST = 1_800_000  # bytes of data and chart runtime; tables in words come on top
_DIRECTIONS = {True: "it rises", False: "it falls", None: "not settled which way it moves"}
_FACTS: tuple[tuple[str, Callable[[MetricCard], str]], ...] = (
    ("Definition", lambda card: card.definition),
    ("Chance level", lambda card: _chance_in_words(card)),
    ("Values", lambda card: f"one per {card.unit}; intervals are over these"),
    ("When tokens become alike", lambda card: _DIRECTIONS[card.rises_when_alike]),
    ("Degenerate input", lambda card: card.degenerate),
    ("Cost", lambda card: card.cost),
    ("Paper", lambda card: card.paper),
)


def write_report(scans: Sequence[Scan], path: str | Path, explanations: Sequence[Explanation] = ()) -> Path:
    """Write one self-contained page with all `scans` overlaid and every explanation, and return its path.

    The file appears whole or not at all. It opens from disk, without a network, and is forbidden to use one.

    Args:
        scans: May be none where there are explanations: the page then holds the Why part alone.
        path: Where to write.
        explanations: Results of `unsmooth.explain`, of the same models or of others.
    """
    # Text from byte-level tokenizers may hold half a surrogate pair, which UTF-8 cannot carry.
    return write_page(path, report_html(scans, explanations))


def report_html(scans: Sequence[Scan], explanations: Sequence[Explanation] = ()) -> str:
    """The page as text."""
    series = series_of(scans) if scans or not explanations else []
    data = script_json(page_data(series))
    pictures, more = profile_pictures(series)
    parts, why = parts_of(explanations, PAGE_FONT, _LARGEST - len(runtime()) - len(data))
    return page_html(
        "template.html.j2",
        ["why/why.html.j2", "manifest.html.j2"],
        styles=("page.css", "why/why.css")[: 2 if parts else 1],
        filters={
            "spoken": spoken,
            "short": partial(spoken, digits=3),
            "signed": partial(spoken, digits=3, signed=True),
            "visible": _visible,
            "manifest_rows": manifest_rows,
            "facts": _scan_facts,
            "percent": _percent,
            "cosine": Precision(),
            "stand_out": _stand_out,
        },
        scripts=([resource("page.js")] if series else []) + ([resource("why/why.js")] if parts else []),
        series=series,
        parts=parts,
        pictures=pictures,
        more_pictures=more,
        names=list(dict.fromkeys([one.name for one in series if not one.dashed] + [part.name for part in parts])),
        data=data,
        chart=script_json(chart_template(series) if series else {}),
        why=script_json(why),
    )


def page_data(series: Sequence[DrawnScan]) -> dict[str, Any]:
    """All numbers and definitions, by position instead of by name to keep the page small."""
    pairs = measured(series)
    metrics = list(pairs)
    sites = list(dict.fromkeys(site for found in pairs.values() for site in found))
    return {
        "series": [{"name": one.name, "colour": one.colour, "dashed": one.dashed} for one in series],
        "metrics": [_metric_facts(series, metric) for metric in metrics],
        "sites": [
            {"name": site, "facts": [_fact("Site", {one.name: one.scan.sites.get(site) for one in series})]}
            for site in sites
        ],
        "curves": [
            {"metric": metrics.index(metric), "site": sites.index(site), "series": index, **columns}
            for metric, found in pairs.items()
            for site in found
            for index, one in enumerate(series)
            if (columns := _columns(one, metric, site))
        ],
    }


def chart_template(series: Sequence[DrawnScan]) -> dict[str, Any]:
    """The chart of `layer_chart` without data and metric, which the page fills in.

    The page's own colour of text is used for axes, so that the chart follows light, dark and print.
    """
    alt = import_extra("altair")
    layers = draw(series, alt.NamedData(name="curves"), alt.NamedData(name="chance"), "")
    spec: dict[str, Any] = alt.layer(*layers.values()).properties(height=340).to_dict()
    spec["config"] = chart_config("currentColor", "currentColor", "transparent", PAGE_FONT)
    spec["config"]["axis"].update(gridOpacity=0.12, domainOpacity=0.5, tickOpacity=0.5)
    spec["config"]["text"]["opacity"] = spec["config"]["rule"]["opacity"] = 0.65
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec


def manifest_rows(value: object, depth: int = 0, key: str = "") -> list[tuple[int, str, str | None]]:
    """A nested manifest as lines of (depth, key, text); text is None where only deeper lines follow.

    >>> manifest_rows({"seed": 0, "data": {"files": ["a", "b"]}})
    [(0, 'seed', '0'), (0, 'data', None), (1, 'files', 'a, b')]
    """
    if isinstance(value, Mapping):
        parts = [(str(name), item) for name, item in value.items()]
    elif isinstance(value, (list, tuple)) and any(isinstance(item, (Mapping, list, tuple)) for item in value):
        parts = [(str(index), item) for index, item in enumerate(value)]
    else:
        return [(depth, key, _plain(value))]
    here: list[tuple[int, str, str | None]] = [(depth, key, None if parts else "–")] if key else []
    inner = depth + 1 if key else depth
    return here + [line for name, item in parts for line in manifest_rows(item, inner, name)]


def _plain(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "–"
    return "–" if value is None or value == "" else str(value)


def _metric_facts(series: Sequence[DrawnScan], metric: str) -> dict[str, Any]:
    cards = {one.name: one.scan.metrics.get(metric) for one in series}
    facts = [_fact(label, {name: read(card) for name, card in cards.items() if card}) for label, read in _FACTS]
    changes = {one.name: _change(one.scan, metric) for one in series}
    facts.insert(4, _fact("First to last residual layer", changes))
    return {"name": metric, "facts": facts, "chance": chance_levels(series, metric)}


def _change(scan: Scan, metric: str) -> str | None:
    found = scan.changes.get(metric)
    if found is None or number(found.mean) is None:
        return None
    say = Precision.of((found.mean, found.ci_low, found.ci_high))
    mean, low, high = (say(value, signed=True) for value in (found.mean, found.ci_low, found.ci_high))
    interval = "" if number(found.ci_low) is None else f" ({low} to {high})"
    return f"{mean}{interval}, paired over {found.sequences} sequences"


def _fact(label: str, said: Mapping[str, str | None]) -> dict[str, Any]:
    """What the scans say, grouped: definitions may differ between versions, and must not be mixed up silently."""
    groups: dict[str, list[str]] = {}
    for name, text in said.items():
        if text:
            groups.setdefault(text, []).append(name)
    return {"label": label, "groups": [{"text": text, "scans": names} for text, names in groups.items()]}


def _chance_in_words(card: MetricCard) -> str:
    value = number(card.chance)
    told = value is None or card.chance_note.split(" ")[0] == spoken(value)
    return card.chance_note if told else f"{spoken(value)} ({card.chance_note})"


def _columns(one: DrawnScan, metric: str, site: str) -> dict[str, list[Any]]:
    curve = one.curve(metric, site)
    if not curve:
        return {}
    return {
        "layer": [row.layer for row in curve],
        "mean": [number(row.mean) for row in curve],
        "low": [number(row.ci_low) for row in curve],
        "high": [number(row.ci_high) for row in curve],
        "sequences": _once([row.sequences for row in curve]),
        "tokens": _once([row.tokens for row in curve]),
    }


def _once(values: list[int]) -> list[int]:
    """A single value where all layers share it, as they nearly always do."""
    return values[:1] if len(set(values)) == 1 else values


def _scan_facts(scan: Scan) -> str:
    """The size of a scan in a line."""
    rows = scan.rows
    if not rows:
        return "no numbers"
    counts = (
        (max(scan.layers), "layer"),
        (max(row.sequences for row in rows), "sequence"),
        (max(row.tokens for row in rows), "token"),
    )
    return " · ".join(f"{count:,} {word}{'' if count == 1 else 's'}" for count, word in counts)


def _visible(text: str) -> str:
    """Token text with its white space made visible."""
    return printable(text.replace("\n", "⏎").replace("\t", "⇥")) or "␣" * len(text)


def _stand_out(confounds: Sequence[Confound]) -> bool:
    """Whether anything was named, or was too rare to be named but moved the mean cosine all the same."""
    return any(one.massive_tokens or one.outlier_dimensions or _moved(one) for one in confounds)


def _moved(one: Confound) -> bool:
    without = (one.without_massive_tokens, one.without_outlier_dimensions, one.without_both)
    return {Precision()(value) for value in without} != {Precision()(one.mean_cosine)}


def _percent(share: float) -> str:
    value = number(share)
    return "–" if value is None else f"{100 * value:.3g}\u00a0%"


_COLUMNS = 5


def notebook_html(scan: Scan) -> str:
    """The sentence, a few layers of every metric and the first metric's curve; no curve without the report extra.

    Of a model with several stacks all that comes once for each.
    """
    if scan.stacks:
        each = "".join(f"<h4>{escape(part.name)}</h4>{notebook_html(part)}" for part in scan.stacks)
        return f'<div class="unsmooth-scans">{each}</div>'
    own = series_of([scan])[:1]  # the baseline is in the sentence and in the curve
    pairs = [(metric, site) for metric, sites in measured(own).items() for site in sites]
    parts = [f"<p><strong>{escape(scan.sentence or scan.name)}</strong></p>"]
    if not scan.complete:
        parts.append("<p><em>Interrupted: the numbers cover what was done until then.</em></p>")
    parts += [f"<p><em>{escape(note)}</em></p>" for note in scan.notes]
    if pairs:
        parts += [_table(scan, pairs), _curve(scan, *pairs[0])]
    return f'<div class="unsmooth-scan">{"".join(parts)}</div>'


def _table(scan: Scan, pairs: Sequence[tuple[str, str]]) -> str:
    layers = _spread(scan.layers)
    head = "".join(f"<th>layer {layer}</th>" for layer in layers)
    lines = []
    for metric, site in pairs:
        cells = _cells(scan, metric, site)
        values = "".join(f"<td>{spoken(cells.get(layer))}</td>" for layer in layers)
        lines.append(f"<tr><td>{escape(metric)}</td><td>{escape(site)}</td>{values}</tr>")
    body = "".join(lines)
    return f"<table><thead><tr><th>metric</th><th>site</th>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(scan: Scan, metric: str, site: str) -> dict[int, float]:
    return {row.layer: row.mean for row in scan.rows if row.metric == metric and row.site == site}


def _spread(layers: Sequence[int]) -> list[int]:
    """First, last and some layers between.

    >>> _spread(range(13))
    [0, 3, 6, 9, 12]
    """
    last, steps = len(layers) - 1, min(_COLUMNS, len(layers)) - 1
    return [layers[round(last * step / steps)] for step in range(steps + 1)] if steps else list(layers)


def _curve(scan: Scan, metric: str, site: str) -> str:
    try:
        return chart_svg(layer_chart([scan], metric, site))
    except UnsmoothError:  # the extra is not installed; the table says the same in numbers
        return ""
