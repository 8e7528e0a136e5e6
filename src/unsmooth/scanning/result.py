"""What a scan found: numbers that carry their definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unsmooth.errors import expected, unknown_name
from unsmooth.scanning.profile import Profile

if TYPE_CHECKING:
    import altair
    import pandas


@dataclass(frozen=True)
class Row:
    """One number: a metric at a site of a layer, as a mean over sequences of per-sequence values.

    `std` is the sample standard deviation over sequences and `ci_low`, `ci_high` the 95 % Student-t interval of
    the mean; all three are NaN for fewer than two sequences. `tokens` counts the tokens measured in all sequences.
    `stack` names the stack of a model that has several; layers count from 0 in each. `stage` is the stage of a model
    that has stages, in which width and number of tokens change.
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
    stack: str = ""
    stage: int | None = None

    def columns(self) -> dict[str, Any]:
        """By name; `stack` and `stage` only where there are several of them."""
        every = asdict(self)
        return {name: value for name, value in every.items() if name not in PLACES or value != PLACES[name]}


PLACES: Mapping[str, Any] = {"stack": "", "stage": None}
"""Columns that most models have no use for, and what stands for nothing in them."""


@dataclass(frozen=True)
class MetricCard:
    """The definition that travels with every number of a metric.

    `chance` is the value that independent isotropic tokens would give at the scanned lengths and width,
    None where there is no such value; `chance_note` says it in words. `rises_when_alike` says which way tokens that
    become alike move it, None where that is not settled. `unit` is what its values are of: means, deviations and
    intervals are over sequences unless it says otherwise, and `sequences` of its rows counts those. `rounding` is what
    equal tokens would give because activations are rounded to their type, for a metric that is 0 for equal tokens.
    """

    name: str
    definition: str
    paper: str
    cost: str
    chance: float | None
    chance_note: str
    degenerate: str
    rises_when_alike: bool | None
    unit: str = "sequence"
    rounding: float | None = None

    def is_rounding(self, value: float) -> bool:
        """Whether rounding makes up a tenth of this value or more."""
        return self.rounding is not None and value <= 10.0 * self.rounding


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


@dataclass(frozen=True, repr=False)
class Scan:
    """The result of `unsmooth.scan`.

    Attributes:
        name: What to call this scan in tables and legends.
        rows: The numbers.
        metrics: Metric name to its definition.
        sites: Site name to its definition.
        manifest: Model id and weight hash, data hash, versions, device, dtype, seed.
        changes: Metric name to how it changes from the first to the last residual layer.
        profiles: What is behind some metrics: spectra, histograms, one number for every two layers.
        confounds: Massive tokens and outlier dimensions by residual layer.
        notes: What a reader must know: sequences left out, NaN activations, an interruption.
        sentence: The finding in one sentence. It tells a direction only where the 95 % interval of the change leaves
            out 0 and the change is at least 0.02: of metrics that rise as tokens become alike, which are at most 1, as
            a difference, of others as a share of the larger end. It tells none from one sequence, or where activations
            were NaN or Inf, and says where texts were cut by more than a tenth of their tokens.
        baseline: The same architecture with random weights on the same data, where asked for.
        complete: False after an interruption.
        healthy: False where activations were NaN or Inf; `notes` says where.
        stack: Which stack of the model this is about, where it has several.
        stacks: One scan for each stack, where several were run: changes, confounds, chance and sentence are theirs, and
            `rows` and `profiles` are those of all.
    """

    name: str
    rows: tuple[Row, ...]
    metrics: Mapping[str, MetricCard]
    sites: Mapping[str, str]
    manifest: Mapping[str, Any]
    changes: Mapping[str, Change] = field(default_factory=dict)
    profiles: tuple[Profile, ...] = ()
    confounds: tuple[Confound, ...] = ()
    notes: tuple[str, ...] = ()
    sentence: str = ""
    baseline: Scan | None = None
    complete: bool = True
    healthy: bool = True
    stack: str = ""
    stacks: tuple[Scan, ...] = ()

    def __repr__(self) -> str:
        metrics = ", ".join(self.metrics)
        layers = f"{self.layers[0]} to {self.layers[-1]}" if self.rows else "none"
        broken = ("" if self.complete else ", interrupted") + ("" if self.healthy else ", with NaN or Inf")
        head = f"Scan {self.name!r}: {metrics} at {', '.join(self.sites)}, layers {layers}{broken}"
        return "\n".join(filter(None, (f"{head}, {len(self.notes)} notes", self.sentence)))

    @property
    def parts(self) -> tuple[Scan, ...]:
        """The scans of single stacks that this one is made of: itself, where there is one."""
        return self.stacks or (self,)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layer numbers in order."""
        return tuple(sorted({row.layer for row in self.rows}))

    def curve(self, metric: str | None = None, site: str | None = None, stack: str | None = None) -> tuple[Row, ...]:
        """The rows of one metric, by default the first, at one site, by layer.

        The site is "residual" unless another is given, or the metric was not measured there. Where several stacks have
        it, `stack` must say which.
        """
        metric = metric or next(iter(self.metrics))
        if metric not in self.metrics:
            raise unknown_name("metric of this scan", metric, self.metrics)
        site = site or self._usual_site(metric)
        stacks = tuple(dict.fromkeys(row.stack for row in self.rows))
        if stack is not None and stack not in stacks:
            raise unknown_name("stack of this scan", stack, stacks)
        found = tuple(row for row in self.rows if row.metric == metric and row.site == site)
        if not found:
            sites = ", ".join(sorted({row.site for row in self.rows if row.metric == metric})) or "none"
            raise expected(f"a site where {metric} was measured ({sites})", repr(site), "another of this scan's sites")
        if stack is None and len({row.stack for row in found}) > 1:
            raise expected(f"one stack ({', '.join(stacks)})", "none", f'curve({metric!r}, stack="{stacks[0]}")')
        return tuple(row for row in found if stack in (None, row.stack))

    def _usual_site(self, metric: str) -> str:
        measured = [row.site for row in self.rows if row.metric == metric]
        return measured[0] if measured and "residual" not in measured else "residual"

    def profile(self, metric: str, site: str | None = None, stack: str = "") -> Profile:
        """The spectrum, histogram or layer × layer matrix behind a metric at one site.

        Raises:
            UnsmoothError: The metric has none, or was not measured there.
        """
        if metric not in self.metrics:
            raise unknown_name("metric of this scan", metric, self.metrics)
        site = site or self._usual_site(metric)
        for profile in self.profiles:
            if (profile.metric, profile.site, profile.stack) == (metric, site, stack):
                return profile
        known = ", ".join(f"{profile.metric} at {profile.site}" for profile in self.profiles) or "none"
        raise expected(f"a metric with a profile ({known})", f"{metric} at {site}", "cosine_quantile or linear_cka")

    def to_frame(self) -> pandas.DataFrame:
        """A tidy frame with one row per layer, site and metric; also by `stack` and `stage` where there are several."""
        import pandas

        rows = [row.columns() for row in self.rows]
        used = [name for name in PLACES if any(name in row for row in rows)]
        columns = used + [column.name for column in fields(Row) if column.name not in PLACES]
        return pandas.DataFrame(rows, columns=columns)

    def plot(self, metric: str | None = None, site: str | None = None) -> altair.LayerChart:
        """The layer curve with its band, as an Altair chart: show it in a notebook, or ``.save("curve.svg")``."""
        from unsmooth.report import layer_chart

        metric = metric or next(iter(self.metrics))
        return layer_chart([self], metric, site or self._usual_site(metric))

    def plot_profile(self, metric: str, site: str | None = None, stack: str = "") -> altair.Chart:
        """The profile behind a metric as a map of layers by axis, as an Altair chart."""
        from unsmooth.report import profile_chart

        return profile_chart(self.profile(metric, site, stack))

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
