"""A scan on disk: scan.json (everything), scan.csv (the frame; also as Parquet), manifest.json (what made it)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unsmooth.files import Saved, check_writable, finite, write_whole
from unsmooth.scanning.parquet import parquet_bytes
from unsmooth.scanning.profile import Profile, ProfileLine
from unsmooth.scanning.result import Change, Confound, MassiveToken, MetricCard, OutlierDimension, Row, Scan

FORMAT = 1
_SAVED = Saved("scan", "Scan.save", "scan", "scanning again", FORMAT)


def save_scan(scan: Scan, folder: Path, *, parquet: bool = False) -> Path:
    """Write the files; the manifest last, so that a folder with a manifest is whole."""
    # First: without pyarrow nothing is written.
    frame = parquet_bytes(scan) if parquet else None
    check_writable(folder)
    if frame is not None:
        write_whole(folder / "scan.parquet", frame)
    write_whole(folder / "scan.json", json.dumps(to_json(scan), indent=1, allow_nan=False))
    write_whole(folder / "scan.csv", scan.to_frame().to_csv(index=False))
    write_whole(folder / "manifest.json", json.dumps(finite(dict(scan.manifest)), indent=1, allow_nan=False))
    return folder


def load_scan(folder: str | Path) -> Scan:
    """Read a scan that `Scan.save` wrote."""
    return _SAVED.read(folder, _from_json)


def to_json(scan: Scan) -> dict[str, Any]:
    """Everything a scan holds, in types that JSON has; NaN becomes null."""
    content = {
        "format": FORMAT,
        "name": scan.name,
        "sentence": scan.sentence,
        "notes": list(scan.notes),
        "complete": scan.complete,
        "healthy": scan.healthy,
        "rows": [row.columns() for row in scan.rows],
        "metrics": {name: asdict(card) for name, card in scan.metrics.items()},
        "sites": dict(scan.sites),
        "changes": {name: asdict(change) for name, change in scan.changes.items()},
        "profiles": [asdict(profile) for profile in scan.profiles],
        "confounds": [asdict(confound) for confound in scan.confounds],
        "manifest": dict(scan.manifest),
        "baseline": None if scan.baseline is None else to_json(scan.baseline),
    }
    if scan.stack:
        content["stack"] = scan.stack
    if scan.stacks:
        # Their rows and profiles are among those above, and the manifest is the same.
        content["stacks"] = [{key: to_json(part)[key] for key in _OF_A_STACK} for part in scan.stacks]
    result: dict[str, Any] = finite(content)
    return result


_OF_A_STACK = ("stack", "name", "sentence", "notes", "complete", "healthy", "metrics", "sites", "changes", "confounds")


def _nan_if_none(fields: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {key: math.nan if key in names and value is None else value for key, value in fields.items()}


def _from_json(content: Mapping[str, Any]) -> Scan:
    whole = _read_whole(content)
    parts = []
    for item in content.get("stacks", ()):
        rows = tuple(row for row in whole.rows if row.stack == item["stack"])
        profiles = tuple(profile for profile in whole.profiles if profile.stack == item["stack"])
        part = _read_whole({**content, **item, "rows": (), "profiles": (), "baseline": None})
        beside = [other for other in (whole.baseline.stacks if whole.baseline else ()) if other.stack == part.stack]
        parts.append(replace(part, rows=rows, profiles=profiles, baseline=beside[0] if beside else None))
    return replace(whole, stacks=tuple(parts))


def _read_whole(content: Mapping[str, Any]) -> Scan:
    numbers = ("mean", "std", "ci_low", "ci_high")
    return Scan(
        name=content["name"],
        rows=tuple(Row(**_nan_if_none(row, numbers)) for row in content["rows"]),
        metrics={name: MetricCard(**card) for name, card in content["metrics"].items()},
        sites=content["sites"],
        manifest=content["manifest"],
        changes={
            name: Change(**_nan_if_none(change, ("mean", "ci_low", "ci_high")))
            for name, change in content["changes"].items()
        },
        profiles=tuple(_read_profile(item) for item in content.get("profiles", ())),
        confounds=tuple(_read_confound(item) for item in content["confounds"]),
        notes=tuple(content["notes"]),
        sentence=content["sentence"],
        baseline=None if content["baseline"] is None else _from_json(content["baseline"]),
        complete=content["complete"],
        healthy=content["healthy"],
        stack=content.get("stack", ""),
    )


def _read_profile(item: Mapping[str, Any]) -> Profile:
    lines = []
    for line in item["lines"]:
        values = tuple(math.nan if value is None else value for value in line["values"])
        lines.append(ProfileLine(line["layer"], tuple(line["at"]), values, line["sequences"]))
    return Profile(**{**item, "lines": tuple(lines)})


def _read_confound(item: Mapping[str, Any]) -> Confound:
    cosines = ("mean_cosine", "without_massive_tokens", "without_outlier_dimensions", "without_both")
    fields = _nan_if_none(item, cosines)
    fields["massive_tokens"] = tuple(MassiveToken(**token) for token in item["massive_tokens"])
    fields["outlier_dimensions"] = tuple(OutlierDimension(**entry) for entry in item["outlier_dimensions"])
    return Confound(**fields)
