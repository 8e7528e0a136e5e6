"""The observer of a scan: turns each tensor into a few numbers per sequence on the spot and lets it go."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError, expected
from unsmooth.functional import BoundMetric, Tokens
from unsmooth.functional._blocks import Reading, Shelf, Workspace, blocks, joined, measure, reading_of
from unsmooth.functional._grid import grid_of_image
from unsmooth.models.anatomy import Watch
from unsmooth.models.watch import none_called, ran_again
from unsmooth.scanning.adding import ENOUGH, Adder, SeenBatch, SeenLayers, Values
from unsmooth.scanning.calling import EVERYTHING, Selection, check_width
from unsmooth.scanning.computing import MetricError, computed
from unsmooth.scanning.confounds import READS, ConfoundState, find_confounds, join_confounds
from unsmooth.scanning.gathering import Gathering, MapSums, Seen, gatherings_for
from unsmooth.scanning.line import Line
from unsmooth.scanning.statistics import LocalSums, Place, ScanState

_READINGS: dict[tuple[Callable[..., Tensor], str], Reading] = {}


@dataclass
class Collector:
    """Measures every tensor of a stack in the current batch, and adds the batch to the sums when it is over.

    `dims` has the width of the stream in each stage; a stack without stages is one. `alone` says that there is no other
    stack: a metric that does not fit this one is then refused. `has_grid` says that tokens were seen to fill one,
    `dtype` is the coarsest that was seen, and `notes` are what a reader must know of the data.
    `confounding` says whether tokens and dimensions that stand out are looked for. `rows_only` is for who reads one
    number per layer and nothing else: not those either, no profiles, and no lengths. Such a one asks nothing of a GPU
    before `settle`, which then waits for it once: its sums are on the CPU.
    """

    metrics: Sequence[BoundMetric]
    vocabulary: int
    device: torch.device
    rows_only: bool = False
    confounding: bool = True
    watch: Watch | None = None
    state: LocalSums | ScanState | None = None
    confounds: ConfoundState | None = None
    places: tuple[Place, ...] = ()
    dims: tuple[int, ...] = ()
    alone: bool = True
    gatherings: list[Gathering] = field(init=False)
    has_grid: bool = False
    dtype: torch.dtype | None = None
    notes: dict[str, None] = field(default_factory=dict)
    _places: dict[Place, None] = field(default_factory=dict)
    _shapes: dict[tuple[str, int | None], torch.Size] = field(default_factory=dict)
    _layers: list[SeenLayers] = field(default_factory=list)
    _width: int = 0
    _previous: dict[tuple[str, int | None], Tokens] = field(default_factory=dict)
    _selection: Selection = EVERYTHING
    _workspace: Workspace = field(default_factory=Workspace)
    _shelf: Shelf = field(default_factory=Shelf)
    _waiting: list[SeenBatch] = field(default_factory=list)
    _values: list[Values] = field(default_factory=list)
    _wanted: frozenset[str] = field(init=False)
    _kept: frozenset[str] = field(init=False)
    _of_vectors: Sequence[int] = field(init=False)
    _of_other_kinds: Sequence[int] = field(init=False)
    _line: Line = field(init=False)
    _mask: tuple[Tensor, Tensor] | None = None

    def __post_init__(self) -> None:
        self.gatherings = gatherings_for(self.metrics, profiles=not self.rows_only)
        self.confounding = self.confounding and not self.rows_only
        self._line = Line(self._workspace)
        readings = {number: _reading(one) for number, one in enumerate(self.metrics) if one.metric.reads == "tokens"}
        self._of_vectors = [number for number, reading in readings.items() if reading.vectors]
        self._of_other_kinds = [number for number in range(len(self.metrics)) if number not in readings]
        # Whatever is measured, norms tell tokens that are zero and sequences that are not finite.
        shown = frozenset({"norms_BN", "unit_sum_BD"} if self.confounding else {"norms_BN"})
        self._wanted = shown.union(*(reading.sums for reading in readings.values()))
        alone = (reading.sums for reading in readings.values() if not reading.vectors)
        self._kept = shown.union({"count_B"}, *alone)

    def begin(self, selection: Selection) -> None:
        """Start a batch."""
        for gathering in self.gatherings:
            gathering.begin()
        self._forget()
        self._selection, self._mask = selection, None

    def __call__(self, layer: int, site: str, tensor: Tensor) -> None:
        """Measure one tensor (batch, tokens, dim)."""
        if self._selection.own is not None:
            tensor = tensor[:, self._selection.own]
        handed = self.watch.real_tokens_BN if self.watch else None
        self._selection = self._selection.marking(tensor.shape[1], handed).among(tensor.shape[1])
        self._selection.check_padding(handed)
        tokens = self._tokens(tensor)
        if self.dtype is None or torch.finfo(tensor.dtype).eps > torch.finfo(self.dtype).eps:
            self.dtype = tensor.dtype
        place = Place(layer, site, self.watch.stage if self.watch else None)
        if place in self._places:
            if self._selection.width is not None:
                raise ran_again()
            self.notes["The blocks ran more than once in a batch: what is measured is their last run."] = None
            self._forget()
        first = self._shapes.setdefault((site, place.stage), tensor.shape)
        if first != tensor.shape:
            shapes = f"{tuple(first)} and, at layer {layer}, {tuple(tensor.shape)}"
            hint = "a blocks pattern for the layers of one shape"
            raise expected(f"layers of one shape at {site}, to compare one with the next", shapes, hint)
        self._places[place] = None
        if not self._line.takes(tokens, place):
            self._measure()
        self._show(place, tensor, tokens)
        self._line.add(tokens, place)
        self._width = tensor.shape[1]
        if self._line.full:
            self._measure()

    def _show(self, place: Place, tensor: Tensor, tokens: Tokens) -> None:
        """Let those see a tensor who look at more than one layer, sequence or row of tokens at a time."""
        if not (self.gatherings or self._of_other_kinds):
            return
        seen = self._as_seen(place, tensor, tokens)
        for number in self._of_other_kinds:
            self._line.put(number, self._value(self.metrics[number], seen))
        for gathering in self.gatherings:
            gathering.see(seen)
        if any(metric.metric.reads == "pair" for metric in self.metrics):
            self._previous[place.site, place.stage] = Tokens(tokens.input_BND, tokens.mask_BN)

    def _measure(self) -> None:
        """Measure what waits in line: the sums that metrics read, and what stands out."""
        if not self._line.places:
            return
        tokens, places = self._line.together(), tuple(self._line.places)
        named = self.confounding and any(place.site == "residual" for place in places)
        wanted = self._wanted | READS if named else self._wanted
        sums, confounds, counts = [], [], []
        for block in blocks(tokens, self._workspace, waits=not self.rows_only):
            sums.append(measure(block, wanted))
            if named:
                confounds.append(find_confounds(block, sums[-1]))
                counts.append(block.count_B)
        found = {"count_B": tokens.count_B, **joined(sums)}
        vars(tokens).update(found)
        direct = {number: computed(self.metrics[number], tokens) for number in self._of_vectors} | self._line.values()
        kept = {name: self._shelf.keep(found[name]) for name in self._kept}
        named_ones = join_confounds(confounds, sums, counts).on(self._shelf) if named else None
        self._layers.append(SeenLayers(places, self._line.shape, self._width, kept, direct, named_ones))
        self._line.clear()

    def _forget(self) -> None:
        """Forget what was seen of the batch."""
        self._places.clear()
        self._shapes.clear()
        self._layers.clear()
        self._previous.clear()
        self._line.clear()

    def _tokens(self, tensor: Tensor) -> Tokens:
        self._check_shape(tensor.shape)
        selected, window = self._selected(), self._selection.window
        return Tokens(tensor[:, window], None if selected is None else self._mask_of(selected, tensor.device))

    def _check_shape(self, shape: torch.Size) -> None:
        """Refuse a mask that is not of these tokens; ids that are not are no ids of theirs."""
        selection = self._selection
        sequences = len(selection.real_BN) if selection.real_BN is not None else shape[0]
        check_width(shape, sequences, shape[1] if selection.width is None else selection.width)
        if selection.ids_BN is not None and selection.ids_BN.shape != shape[:2]:
            self._selection = replace(selection, ids_BN=None)

    def _mask_of(self, selected_BN: Tensor, device: torch.device) -> Tensor:
        """The mask of the measured tokens, the same one at every layer."""
        if self._mask is None or self._mask[0] is not selected_BN or self._mask[1].device != device:
            self._mask = selected_BN, selected_BN[:, self._selection.window].to(device, non_blocking=True)
        return self._mask[1]

    def _selected(self) -> Tensor | None:
        """The batch's own mask, else the one that the model handed to its blocks."""
        handed = self.watch.real_tokens_BN if self.watch else None
        return handed if self._selection.real_BN is None and handed is not None else self._selection.selected_BN

    def _as_seen(self, place: Place, tensor: Tensor, tokens: Tokens) -> Seen:
        """The tensor for metrics that need more than its measured tokens."""
        selection = self._selection
        words_BN = None if selection.ids_BN is None else selection.ids_BN[:, selection.window]
        if selection.image is None:
            return Seen(place, tokens, words_BN, patches=tokens)
        same = tokens.mask_BN is None and tokens.input_BND.shape[1] == tensor.shape[1] - selection.prefix
        patches = tokens if same else Tokens(tensor[:, selection.prefix :])
        return Seen(place, tokens, words_BN, patches, grid_of_image(patches.input_BND.shape[1], selection.image))

    def _value(self, metric: BoundMetric, seen: Seen) -> Tensor:
        """What is NaN is not counted: the first layer of a site or stage has no layer before it of its shape."""
        tokens, reads = seen.tokens, metric.metric.reads
        before = self._previous.get((seen.place.site, seen.place.stage))
        if reads == "pair" and before is not None:
            return computed(metric, _beside(before, tokens), tokens)
        if reads == "grid" and (options := seen.on_grid(metric)) is not None:
            self.has_grid = True
            return computed(metric, seen.patches, **options)
        return torch.full_like(tokens.count_B, math.nan)

    def see_maps(self, layer: int, maps_BHNN: Tensor) -> None:
        """Measure the attention maps of one block call; their padding is left out, and nothing else."""
        for gathering in self.gatherings:
            if isinstance(gathering, MapSums):
                gathering.see_maps(layer, maps_BHNN, self._real())

    @property
    def touched(self) -> bool:
        """Whether anything of this stack was seen in the batch, or in one before, so that it should have been."""
        return bool(self._places) or self.state is not None

    def end(self, batch: int) -> None:
        """Add the batch to the sums."""
        if not self._places:
            raise none_called()
        self._measure()
        places, first = tuple(self._places), self.state is None
        if first:
            stages = (next(run) for _, run in groupby(self._layers, key=lambda layers: layers.places[0].stage))
            self.start(places, tuple(layers.shape[2] for layers in stages))
        if places != self.places:
            raise UnsmoothError(
                f"Expected the {len(self.places)} places of the first batch but got {len(places)} on batch {batch}. "
                f"Try a model whose depth does not change from batch to batch."
            )
        self._waiting.append(SeenBatch(batch, tuple(self._layers), self._selection, self._real()))
        # Who looks at one batch alone can read its numbers at once.
        if not self.rows_only and (first or sum(waiting.numbers for waiting in self._waiting) >= ENOUGH):
            self.settle()
        for gathering in self.gatherings:
            gathering.end()
        if first and self.alone:
            self._check_fit()
        self._forget()

    def settle(self) -> None:
        """Add what is waiting, so that the sums are those of all batches that are over."""
        for values in self.evaluate():
            self._adder().add(values)
        self._values.clear()

    def evaluate(self) -> list[Values]:
        """What all that is waiting comes to, on the device on which it was seen."""
        for _, run in groupby(self._waiting, key=lambda batch: batch.shapes):
            self._values.append(self._adder().values(list(run)))
        self._waiting.clear()
        self._shelf.clear()
        return self._values

    def _adder(self) -> Adder:
        assert self.state is not None
        return Adder(self.metrics, self.stages, self.ends, self.state, self.confounds, self.device)

    def for_another(self, *, alone: bool) -> Collector:
        """An empty one that asks the same of another stack."""
        fresh = Collector(self.metrics, self.vocabulary, self.device, self.rows_only, self.confounding)
        fresh.alone = alone
        return fresh

    def again(self) -> Collector:
        """One that has added nothing yet, for the values that this one holds and has not added."""
        other = replace(self, state=None)
        other._values = list(self._values)
        if self.places:
            other.start(self.places, self.dims)
        return other

    def _check_fit(self) -> None:
        """Refuse a metric that this model or these data have nothing for."""
        for gathering in self.gatherings:
            if (problem := gathering.missing()) is not None:
                raise problem
        for metric in self.metrics:
            if metric.metric.reads == "grid" and not self.has_grid:
                got = "data without images" if self._selection.image is None else "tokens that do not fill one"
                hint = f"another metric, or {metric.metric.name}(grid=(height, width))"
                problem = expected(f"images whose patches lie on a grid, for {metric.name},", got, hint)
                raise MetricError(str(problem), metric.name)

    def start(self, places: tuple[Place, ...], dims: tuple[int, ...]) -> None:
        """Lay out empty sums for these places, in stages of these widths."""
        self.places, self.dims = places, dims
        residual = sum(place.site == "residual" for place in places)
        size = len(places), len(self.metrics), len(dims)
        self.state = LocalSums(*size) if self.rows_only else ScanState(*size).to(self.device)
        if self.confounding:
            self.confounds = ConfoundState(residual, max(dims), self.vocabulary).to(self.device)

    @property
    def stages(self) -> list[list[Place]]:
        """The places of each stage."""
        return [list(run) for _, run in groupby(self.places, key=_stage_of)]

    @property
    def ends(self) -> tuple[int, int] | None:
        """Indices of the first and last residual layer among the places."""
        residual = [index for index, place in enumerate(self.places) if place.site == "residual"]
        return (residual[0], residual[-1]) if len(residual) > 1 else None

    def _real(self) -> Tensor | None:
        """Which tokens are not padding, None where nothing is known to be."""
        handed = self.watch.real_tokens_BN if self.watch else None
        return handed if self._selection.real_BN is None else self._selection.real_BN


def _reading(metric: BoundMetric) -> Reading:
    """What a metric reads, tried once and not once for each collector: a monitor has one for every look."""
    key = metric.metric.function, metric.name
    if key not in _READINGS:
        _READINGS[key] = reading_of(partial(computed, metric))
    return _READINGS[key]


def _stage_of(place: Place) -> int:
    return -1 if place.stage is None else place.stage


def _beside(before: Tokens, tokens: Tokens) -> Tokens:
    """Where a model is spread over devices, the layer before may be on another one."""
    device, mask_BN = tokens.input_BND.device, before.mask_BN
    if before.input_BND.device == device:
        return before
    return Tokens(before.input_BND.to(device), None if mask_BN is None else mask_BN.to(device))
