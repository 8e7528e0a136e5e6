"""A scan on disk: scan.json (everything), scan.csv (the frame; also as Parquet), manifest.json (what made it)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unsmooth.errors import expected
from unsmooth.files import Saved, check_writable, finite, write_whole
from unsmooth.scanning.parquet import parquet_bytes
from unsmooth.scanning.result import Scan
from unsmooth.schema import parse

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


# What a scan and its baseline or stacks share, or nest.
_ELSEWHERE = ("format", "baseline", "stacks")
_OF_A_STACK = ("stack", "name", "sentence", "notes", "complete", "healthy", "metrics", "sites", "changes", "confounds")


def _from_json(content: Mapping[str, Any]) -> Scan:
    stacks = parse(tuple[dict[str, Any], ...], content.get("stacks", ()), where="stacks")
    beside = content.get("baseline")
    whole = parse(Scan, {name: value for name, value in content.items() if name not in _ELSEWHERE})
    whole = replace(whole, baseline=None if beside is None else _from_json(parse(dict, beside, where="baseline")))
    parts = []
    for item in stacks:
        part = parse(Scan, {"rows": (), "manifest": {}, **item}, where="stacks")
        other = [one for one in (whole.baseline.stacks if whole.baseline else ()) if one.stack == part.stack]
        rows = tuple(row for row in whole.rows if row.stack == part.stack)
        profiles = tuple(profile for profile in whole.profiles if profile.stack == part.stack)
        baseline = other[0] if other else None
        parts.append(replace(part, rows=rows, profiles=profiles, baseline=baseline, manifest=whole.manifest))
    whole = replace(whole, stacks=tuple(parts))
    for one in whole.parts:
        _check(one)
    return whole


def _check(scan: Scan) -> None:
    """Refuse a scan whose parts do not belong together, before a table or a page is made of it."""
    cells = Counter((row.layer, row.site, row.metric, row.stack) for row in scan.rows)
    wrong = {
        "a row": not scan.rows,
        "each row once": max(cells.values(), default=1) > 1,
        "layers from 0 to 100,000": any(not 0 <= row.layer <= 100_000 for row in scan.rows),
        "counts of 0 or more": any(min(row.sequences, row.tokens) < 0 for row in scan.rows),
        "the definition of every metric": not {row.metric for row in scan.rows} <= scan.metrics.keys(),
        "rows of every metric": not scan.metrics.keys() <= {row.metric for row in scan.rows},
        "the definition of every site": not {row.site for row in scan.rows} <= scan.sites.keys(),
        "changes of its own metrics": not scan.changes.keys() <= scan.metrics.keys(),
        "profiles as wide as their axis": any(
            len(line.at) != len(line.values) for profile in scan.profiles for line in profile.lines
        ),
    }
    if missing := next((what for what, is_wrong in wrong.items() if is_wrong), None):
        raise expected(f"{missing} in a scan", "another", "scanning again")
