"""``unsmooth compare SCAN SCAN…``: saved scans side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unsmooth.cli.options import Debug
from unsmooth.errors import expected, unknown_name
from unsmooth.files import check_writable

if TYPE_CHECKING:
    from unsmooth.scanning import Scan


def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="SCAN SCAN…", help="Folders that scan --out wrote.")],
    metric: Annotated[str | None, typer.Option(help="Default the first metric that all scans have.")] = None,
    site: Annotated[str, typer.Option(help="Where in each block.")] = "residual",
    out: Annotated[Path | None, typer.Option(help="Folder for a report and figures with all curves.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no table.")] = False,
    debug: Debug = False,
) -> int:
    """Put the curves of saved scans side by side."""
    from unsmooth.scanning import load_scan

    if len(folders) < 2:
        raise expected("at least two scans", len(folders), "`unsmooth compare DIR DIR`")
    if out is not None:
        check_writable(out)
    scans = [load_scan(folder) for folder in folders]
    chosen = shared_metric(scans, metric)
    if out is not None:
        from unsmooth.report import save_figures, write_report

        write_report(scans, out / "report.html")
        save_figures(scans, out / "figures")
    parts = [part for scan in scans for part in parts_with(scan, chosen, site)]
    if as_json:
        typer.echo(json.dumps([summary(part, chosen, site) for part in parts], allow_nan=False))
    elif not quiet:
        from unsmooth.cli.tables import print_comparison

        print_comparison(parts, chosen, site, out)
    return 0


def parts_with(scan: Scan, metric: str, site: str) -> list[Scan]:
    """The stacks of a scan that have a site; it is an error where none has."""
    found = [part for part in scan.parts if site in part.sites] or [scan]
    found[0].curve(metric, site)
    return found


def shared_metric(scans: list[Scan], metric: str | None) -> str:
    """`metric`, or the first one that all scans have."""
    shared = [name for name in scans[0].metrics if all(name in scan.metrics for scan in scans)]
    if not shared:
        raise expected("scans with a metric in common", "none", "scanning again with the same --metrics")
    if metric is None:
        return shared[0]
    if metric not in shared:
        raise unknown_name("metric shared by these scans", metric, shared)
    return metric


def summary(scan: Scan, metric: str, site: str) -> dict[str, Any]:
    """One scan's curve for JSON."""
    import math

    def clean(value: float) -> float | None:
        return value if math.isfinite(value) else None

    change = scan.changes.get(metric)
    return {
        "name": scan.name,
        **({"stack": scan.stack} if scan.stack else {}),
        "metric": metric,
        "site": site,
        "definition": scan.metrics[metric].definition,
        "chance": scan.metrics[metric].chance,
        "layers": [row.layer for row in scan.curve(metric, site)],
        "means": [clean(row.mean) for row in scan.curve(metric, site)],
        "change": None if change is None or site != "residual" else clean(change.mean),
    }
