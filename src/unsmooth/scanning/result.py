"""What a scan found: numbers that carry their definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unsmooth.errors import expected, unknown_name

if TYPE_CHECKING:
    import altair
    import pandas


@dataclass(frozen=True)
class Row:
    """One number: a metric at a site of a layer, as a mean over sequences of per-sequence values.

    `std` is the sample standard deviation over sequences and `ci_low`, `ci_high` the 95 % Student-t interval of
    the mean; all three are NaN for fewer than two sequences. `tokens` counts the tokens measured in all sequences.
    """

    layer: int
    site: str
    metric: str
    mean: float
    std: float
    ci_low: float
    ci_high: float
    sequences: int
    tokens: int


@dataclass(frozen=True)
class MetricCard:
    """The definition that travels with every number of a metric.

    `chance` is the value that independent isotropic tokens would give at the scanned lengths and width,
    None where there is no such value; `chance_note` says it in words. `rises_when_alike` says which way tokens that
    become alike move it, None where that is not settled.
    """

    name: str
    definition: str
    paper: str
    cost: str
    chance: float | None
    chance_note: str
    degenerate: str
    rises_when_alike: bool | None


@dataclass(frozen=True)
class Change:
    """Last minus first residual layer, paired by sequence, with its 95 % Student-t interval."""

    mean: float
    ci_low: float
    ci_high: float
    sequences: int


@dataclass(frozen=True)
class MassiveToken:
    """A token whose norm is far above its sequence's median, named by where it stands or by what it says.

    `share` is how often it is met per sequence. `position` counts real tokens from 0; `text` is the token itself.
    """

    position: int | None
    share: float
    text: str | None = None


@dataclass(frozen=True)
class OutlierDimension:
    """A feature whose mean absolute value is far above the median feature's, in what share of sequences."""

    dimension: int
    share: float


@dataclass(frozen=True)
class Confound:
    """What massive tokens and outlier dimensions do to the mean cosine of one residual layer.

    All values are means over sequences. `without_both` leaves out massive tokens and outlier dimensions.
    """

    layer: int
    mean_cosine: float
    without_massive_tokens: float
    without_outlier_dimensions: float
    without_both: float
    massive_tokens: tuple[MassiveToken, ...] = ()
    outlier_dimensions: tuple[OutlierDimension, ...] = ()


@dataclass(frozen=True)
class Scan:
    """The result of `unsmooth.scan`.

    Attributes:
        name: What to call this scan in tables and legends.
        rows: The numbers.
        metrics: Metric name to its definition.
        sites: Site name to its definition.
        manifest: Model id and weight hash, data hash, versions, device, dtype, seed.
        changes: Metric name to how it changes from the first to the last residual layer.
        confounds: Massive tokens and outlier dimensions by residual layer.
        notes: What a reader must know: sequences left out, NaN activations, an interruption.
        sentence: The finding in one sentence.
        baseline: The same architecture with random weights on the same data, where asked for.
        complete: False after an interruption.
        healthy: False where activations were NaN or Inf; `notes` says where.
    """

    name: str
    rows: tuple[Row, ...]
    metrics: Mapping[str, MetricCard]
    sites: Mapping[str, str]
    manifest: Mapping[str, Any]
    changes: Mapping[str, Change] = field(default_factory=dict)
    confounds: tuple[Confound, ...] = ()
    notes: tuple[str, ...] = ()
    sentence: str = ""
    baseline: Scan | None = field(default=None, repr=False)
    complete: bool = True
    healthy: bool = True

    @property
    def layers(self) -> tuple[int, ...]:
        """Layer numbers in order."""
        return tuple(sorted({row.layer for row in self.rows}))

    def curve(self, metric: str | None = None, site: str = "residual") -> tuple[Row, ...]:
        """The rows of one metric, by default the first, at one site, by layer."""
        metric = metric or next(iter(self.metrics))
        if metric not in self.metrics:
            raise unknown_name("metric of this scan", metric, self.metrics)
        found = tuple(row for row in self.rows if row.metric == metric and row.site == site)
        if not found:
            sites = ", ".join(sorted({row.site for row in self.rows}))
            raise expected(f"a site of this scan ({sites})", repr(site), "scanning again with sites=(…)")
        return found

    def to_frame(self) -> pandas.DataFrame:
        """A tidy frame with one row per layer, site and metric."""
        import pandas

        columns = [column.name for column in fields(Row)]
        return pandas.DataFrame([asdict(row) for row in self.rows], columns=columns)

    def plot(self, metric: str | None = None, site: str = "residual") -> altair.LayerChart:
        """The layer curve with its band, as an Altair chart: show it in a notebook, or ``.save("curve.svg")``."""
        from unsmooth.report import layer_chart

        return layer_chart([self], metric or next(iter(self.metrics)), site)

    def _repr_html_(self) -> str:
        from unsmooth.report import notebook_html

        return notebook_html(self)

    def to_parquet(self, path: str | Path) -> Path:
        """Write the frame as a Parquet file, definitions and manifest in its metadata; needs the extra `parquet`.

        ``pandas.read_parquet(path)`` gives `to_frame` back.
        """
        from unsmooth.files import write_whole
        from unsmooth.scanning.parquet import parquet_bytes

        return write_whole(Path(path), parquet_bytes(self))

    def save(self, folder: str | Path, *, parquet: bool = False) -> Path:
        """Write scan.json, scan.csv and manifest.json into `folder`; each file appears whole or not at all.

        Args:
            folder: Is made where it is not there.
            parquet: Also write scan.parquet; see `to_parquet`.
        """
        from unsmooth.scanning.files import save_scan

        return save_scan(self, Path(folder), parquet=parquet)
