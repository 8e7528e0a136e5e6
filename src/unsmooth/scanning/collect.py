"""The observer of a scan: turns each tensor into a few numbers per sequence on the spot and lets it go."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError, expected
from unsmooth.functional import BoundMetric, Tokens
from unsmooth.functional._blocks import (
    Shelf,
    Workspace,
    blocks,
    fill_in,
    join_sums,
    measure,
    reads_centred,
    shared_sums,
)
from unsmooth.functional._grid import grid_of_image
from unsmooth.models.anatomy import Watch
from unsmooth.scanning.calling import EVERYTHING, Selection
from unsmooth.scanning.confounds import ConfoundBatch, ConfoundState, find_confounds, join_confounds
from unsmooth.scanning.gathering import Gathering, MapSums, Seen, gatherings_for
from unsmooth.scanning.statistics import LENGTH_BINS, Place, ScanState


@dataclass(frozen=True)
class _Seen:
    """What is kept of one tensor until its batch is over: sums per sequence.

    `direct` holds the values of metrics that read the vectors themselves, by their number.
    """

    sums: Tokens
    direct: Mapping[int, Tensor]
    confounds: ConfoundBatch | None
    width: int


@dataclass
class Collector:
    """Measures every tensor of a stack in the current batch, and adds the batch to the sums when it is over.

    `dims` has the width of the stream in each stage; a stack without stages is one. `alone` says that there is no other
    stack: a metric that does not fit this one is then refused. `has_grid` says that tokens were seen to fill one.
    `rows_only` is for who reads a number per layer and nothing else: no profiles, lengths, or tokens that stand out.
    """

    metrics: Sequence[BoundMetric]
    vocabulary: int
    device: torch.device
    rows_only: bool = False
    watch: Watch | None = None
    state: ScanState | None = None
    confounds: ConfoundState | None = None
    places: tuple[Place, ...] = ()
    dims: tuple[int, ...] = ()
    alone: bool = True
    gatherings: list[Gathering] = field(init=False)
    has_grid: bool = False
    _seen: dict[Place, _Seen] = field(default_factory=dict)
    _previous: dict[tuple[str, int | None], Tokens] = field(default_factory=dict)
    _selection: Selection = EVERYTHING
    _workspace: Workspace = field(default_factory=Workspace)
    _shelf: Shelf = field(default_factory=Shelf)
    _centred: bool = field(init=False)

    def __post_init__(self) -> None:
        self.gatherings = gatherings_for(self.metrics, profiles=not self.rows_only)
        # Those of other kinds are few, and their functions take more than tokens to try them with.
        self._centred = any(metric.metric.reads != "tokens" or reads_centred(metric) for metric in self.metrics)

    def begin(self, selection: Selection) -> None:
        """Start a batch."""
        for gathering in self.gatherings:
            gathering.begin()
        self._seen.clear()
        self._previous.clear()
        self._shelf.clear()
        self._selection = selection

    def __call__(self, layer: int, site: str, tensor: Tensor) -> None:
        """Measure one tensor (batch, tokens, dim)."""
        tokens = self._tokens(tensor)
        place = Place(layer, site, self.watch.stage if self.watch else None)
        confounds = self._measure(tokens, with_confounds=not self.rows_only and site == "residual")
        seen = self._as_seen(place, tensor, tokens)
        direct = {
            number: self._value(metric, seen)
            for number, metric in enumerate(self.metrics)
            if not metric.reads_only_sums
        }
        self._seen[place] = _Seen(shared_sums(tokens, self._shelf), direct, confounds, tensor.shape[1])
        for gathering in self.gatherings:
            gathering.see(seen)
        if any(metric.metric.reads == "pair" for metric in self.metrics):
            self._previous[site, place.stage] = Tokens(tokens.input_BND, tokens.mask_BN)

    def _measure(self, tokens: Tokens, with_confounds: bool) -> ConfoundBatch | None:
        """Fill in the sums that metrics share, and look for what stands out while the vectors are at hand."""
        sums, confounds = [], []
        for block in blocks(tokens, self._workspace):
            sums.append(measure(block, self._centred))
            if with_confounds:
                confounds.append(find_confounds(block, sums[-1]))
        fill_in(tokens, sums)
        return join_confounds(confounds).on(self._shelf) if confounds else None

    def _tokens(self, tensor: Tensor) -> Tokens:
        selected, window, width = self._selected(), self._selection.window, self._selection.width
        if width is not None and width != tensor.shape[1]:
            raise expected(
                f"a mask for the {tensor.shape[1]} tokens of the model's hidden states",
                f"one for {width}",
                'data with "attention_mask" or "token_mask" of that width',
            )
        mask = None if selected is None else selected[:, window].to(tensor.device, non_blocking=True)
        return Tokens(tensor[:, window], mask)

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
        if reads == "tokens":
            return metric(tokens)
        if reads == "pair" and before is not None:
            return metric(_beside(before, tokens), tokens)
        if reads == "grid" and (options := seen.on_grid(metric)) is not None:
            self.has_grid = True
            return metric.metric.function(seen.patches, **options)
        return torch.full_like(tokens.count_B, math.nan)

    def see_maps(self, layer: int, maps_BHNN: Tensor) -> None:
        """Measure the attention maps of one block call; their padding is left out, and nothing else."""
        for gathering in self.gatherings:
            if isinstance(gathering, MapSums):
                gathering.see_maps(layer, maps_BHNN, self._real())

    @property
    def touched(self) -> bool:
        """Whether anything of this stack was seen in the batch, or in one before, so that it should have been."""
        return bool(self._seen) or self.state is not None

    def end(self, batch: int) -> None:
        """Add the batch to the sums."""
        if not self._seen:
            raise UnsmoothError(
                "Expected the model to call its blocks but none was called. "
                "Try another blocks pattern, or data that reaches them."
            )
        places, first = tuple(self._seen), self.state is None
        if first:
            stages = (next(run) for _, run in groupby(places, key=_stage_of))
            self.start(places, tuple(self._seen[place].sums.input_BND.shape[2] for place in stages))
        if places != self.places:
            raise UnsmoothError(
                f"Expected the {len(self.places)} places of the first batch but got {len(places)} on batch {batch}. "
                f"Try a model whose depth does not change from batch to batch."
            )
        self._add(batch)
        for gathering in self.gatherings:
            gathering.end()
        if first and self.alone:
            self._check_fit()
        self._seen.clear()
        self._previous.clear()

    def _check_fit(self) -> None:
        """Refuse a metric that this model or these data have nothing for."""
        for gathering in self.gatherings:
            if (problem := gathering.missing()) is not None:
                raise problem
        for metric in self.metrics:
            if metric.metric.reads == "grid" and not self.has_grid:
                got = "data without images" if self._selection.image is None else "tokens that do not fill one"
                hint = f"another metric, or {metric.metric.name}(grid=(height, width))"
                raise expected(f"images whose patches lie on a grid, for {metric.name},", got, hint)

    def start(self, places: tuple[Place, ...], dims: tuple[int, ...]) -> None:
        """Lay out empty sums for these places, in stages of these widths."""
        self.places, self.dims = places, dims
        residual = sum(place.site == "residual" for place in places)
        bins = 1 if self.rows_only else LENGTH_BINS
        self.state = ScanState(len(places), len(self.metrics), len(dims), bins).to(self.device)
        if not self.rows_only:
            self.confounds = ConfoundState(residual, max(dims), self.vocabulary).to(self.device)

    @property
    def stages(self) -> list[list[Place]]:
        """The places of each stage."""
        return [list(run) for _, run in groupby(self.places, key=_stage_of)]

    def _add(self, batch: int) -> None:
        assert self.state is not None
        values, finite, zeros, lengths, residual = [], [], [], [], 0
        for places in self.stages:
            seen = [self._seen[place] for place in places]
            sums = join_sums([item.sums for item in seen], self.device)
            by_place = (len(seen), -1)
            finite_KB = sums.norms_BN.sum(dim=1).isfinite().view(by_place)
            each = [
                self._joined(number, metric, sums, seen).view(by_place) for number, metric in enumerate(self.metrics)
            ]
            values.append(torch.stack(each, dim=1))
            finite.append(finite_KB)
            zeros.append((sums.count_B - sums.nonzero_B).view(by_place))
            lengths.append(seen[0].sums.count_B.to(self.device))
            usable_KB = finite_KB & (lengths[-1] >= 2)
            residual += self._add_confounds(seen, usable_KB, residual)
        sizes = torch.tensor([len(places) for places in self.stages], device=self.device)
        stage_K = torch.arange(len(sizes), device=self.device).repeat_interleave(sizes)
        together = (torch.cat(values), torch.cat(finite), torch.cat(zeros), torch.stack(lengths))
        self.state.update(*together, stage_K, batch, self.ends)

    def _add_confounds(self, seen: Sequence[_Seen], usable_KB: Tensor, first: int) -> int:
        """Add the residual layers of a stage to what stands out; returns how many there are."""
        residual = [index for index, item in enumerate(seen) if item.confounds is not None]
        found = [item.confounds for item in seen if item.confounds is not None]
        if residual and self.confounds is not None:
            self.confounds.update(found, usable_KB[residual], *self._positions(seen[0]), first=first)
        return len(residual)

    def _joined(self, number: int, metric: BoundMetric, sums: Tokens, seen: Sequence[_Seen]) -> Tensor:
        """Values of one metric at all places, place after place."""
        if metric.reads_only_sums:
            return metric(sums).double()
        return torch.cat([item.direct[number].to(self.device) for item in seen]).double()

    @property
    def ends(self) -> tuple[int, int] | None:
        """Indices of the first and last residual layer among the places."""
        residual = [index for index, place in enumerate(self.places) if place.site == "residual"]
        return (residual[0], residual[-1]) if len(residual) > 1 else None

    def _real(self) -> Tensor | None:
        """Which tokens are not padding, None where nothing is known to be."""
        handed = self.watch.real_tokens_BN if self.watch else None
        return handed if self._selection.real_BN is None else self._selection.real_BN

    def _positions(self, seen: _Seen) -> tuple[Tensor, Tensor | None]:
        """Position of each measured token among the real ones, and its id where there are ids."""
        window, ids = self._selection.window, self._selection.ids_BN
        real = self._real()
        if real is None:
            positions = torch.arange(seen.width, device=self.device).expand(seen.sums.count_B.shape[0], -1)
        else:
            positions = (real.long().cumsum(dim=1) - 1).to(self.device)
        return positions[:, window], None if ids is None else ids[:, window].to(self.device)


def _stage_of(place: Place) -> int:
    return -1 if place.stage is None else place.stage


def _beside(before: Tokens, tokens: Tokens) -> Tokens:
    """Where a model is spread over devices, the layer before may be on another one."""
    device, mask_BN = tokens.input_BND.device, before.mask_BN
    if before.input_BND.device == device:
        return before
    return Tokens(before.input_BND.to(device), None if mask_BN is None else mask_BN.to(device))
