"""One model under many published definitions, in one forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models import Anatomy, find_anatomy, model_of
from unsmooth.models.spread import check_device
from unsmooth.numbers import Precision
from unsmooth.presets import PRESETS, Preset
from unsmooth.scanning.assemble import model_name
from unsmooth.scanning.calling import as_inputs, image_size, token_ids, transformers_core
from unsmooth.scanning.data import RawBatch, Source
from unsmooth.scanning.inputs import preprocessing
from unsmooth.scanning.one_pass import one_pass
from unsmooth.scanning.opening import open_data
from unsmooth.scanning.plan import Plan, check_at_least_one, check_metrics
from unsmooth.scanning.published import find_preset, misfit, only
from unsmooth.scanning.result import Row, Scan
from unsmooth.scanning.sentence import direction_of

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Gap:
    """Where two definitions of one quantity are furthest apart: `higher` minus `lower`, at a layer."""

    quantity: str
    lower: str
    higher: str
    layer: int
    size: float


@dataclass(frozen=True)
class Definitions:
    """The result of `unsmooth.compare_presets`.

    Attributes:
        name: What the model is called.
        scans: Preset name to its scan.
        presets: Preset name to the preset.
        left_out: Names of presets that do not fit the model or the data, and why.
    """

    name: str
    scans: Mapping[str, Scan]
    presets: Mapping[str, Preset]
    left_out: Mapping[str, str]

    def curve(self, preset: str) -> tuple[Row, ...]:
        """The published curve at the output of the blocks."""
        return self.scans[preset].curve(self.presets[preset].curve, "residual")

    @property
    def quantities(self) -> dict[str, list[str]]:
        """What is measured, to the presets that measure it."""
        found: dict[str, list[str]] = {}
        for name in self.scans:
            found.setdefault(self.presets[name].quantity, []).append(name)
        return found

    @property
    def gaps(self) -> list[Gap]:
        """For each quantity with more than one definition, where two of them are furthest apart."""
        found = (self._widest(quantity, names) for quantity, names in self.quantities.items())
        return [gap for gap in found if gap is not None]

    def _widest(self, quantity: str, names: Sequence[str]) -> Gap | None:
        curves = {name: {row.layer: row.mean for row in self.curve(name)} for name in names}
        gaps = [
            Gap(quantity, lower, higher, layer, curves[higher][layer] - curves[lower][layer])
            for pair in combinations(names, 2)
            for lower, higher in (pair, pair[::-1])
            for layer in curves[lower]
            if layer in curves[higher] and curves[higher][layer] >= curves[lower][layer]
        ]
        return max(gaps, key=lambda gap: gap.size, default=None)

    def verdict(self, preset: str) -> str:
        """Whether tokens grow "more" or "less" alike by this definition, else "open"; see `Scan.sentence`."""
        scan, name = self.scans[preset], self.presets[preset].curve
        if not scan.healthy or name not in scan.changes:
            return "open"
        first, *_, last = self.curve(preset)
        found = direction_of(scan.metrics[name], first, last, scan.changes[name])
        return found if found in ("more", "less") else "open"

    @property
    def sentence(self) -> str:
        """How far apart the definitions are, and whether they agree on the direction."""
        parts = []
        for gap in self.gaps:
            ends = [self.curve(name)[-1].mean for name in self.quantities[gap.quantity]]
            say = Precision.of((*ends, gap.size), decimals=2)
            parts.append(
                f"{len(ends)} definitions of {gap.quantity} put the last layer of {self.name} between {say(min(ends))} "
                f"and {say(max(ends))}; they are furthest apart at layer {gap.layer}, {say(gap.size)} between "
                f"{gap.lower} and {gap.higher}."
            )
        verdicts = [self.verdict(name) for name in self.scans]
        more, less = verdicts.count("more"), verdicts.count("less")
        parts.append(
            f"By {more} of {len(verdicts)} definitions its tokens grow more alike with depth, by {less} less, by "
            f"{len(verdicts) - more - less} neither clearly."
        )
        return " ".join(parts)

    def to_frame(self) -> pandas.DataFrame:
        """A tidy frame: preset, quantity, layer, site, metric, mean, std, ci_low, ci_high, sequences, tokens."""
        import pandas

        frames = []
        for name, scan in self.scans.items():
            frame = scan.to_frame()
            frame.insert(0, "quantity", self.presets[name].quantity)
            frame.insert(0, "preset", name)
            frames.append(frame)
        return pandas.concat(frames, ignore_index=True)


def compare_presets(
    model: nn.Module | str,
    data: Any,
    *,
    presets: Sequence[str | Preset] | None = None,
    max_batches: int | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
    blocks: str | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
    tokenizer: Any | None = None,
    image_processor: Any | None = None,
    column: str | None = None,
    name: str | None = None,
) -> Definitions:
    """Measure a model by many published definitions in one forward pass, to see how far its curve moves between them.

    Args:
        model: An nn.Module, a transformers pipeline, or a name for `unsmooth.load`.
        data: As `unsmooth.scan` takes it; it must be possible to read it twice, as its first batch is looked at before.
        presets: Names, or presets; None for all that fit. One that is named and does not fit is an error.
        max_batches: As in `unsmooth.scan`, like all that follow.
        device: Move the model there for the scan, and back.
        progress: Show a progress bar on a terminal.
        blocks: Pattern over module paths for a model that is not recognised, or has several stacks.
        batch_size: Sequences per batch, for data that is not batched yet.
        max_length: Tokens after which a text is cut.
        tokenizer: For texts, where the model does not come with one.
        image_processor: For images, likewise.
        column: Which column of a table holds the texts or images, as for `unsmooth.scan`.
        name: What to call the model; default its own name.
    """
    check_at_least_one("batch_size", batch_size)
    check_at_least_one("max_length", max_length)
    module = model_of(model)
    anatomy = find_anatomy(module, blocks)
    how = preprocessing(module, [anatomy], tokenizer, image_processor, batch_size, max_length, column)
    source = open_data(data, how)
    first = as_inputs(_first_batch(source), transformers_core(module, anatomy))
    fitting, left_out = _fitting(presets, anatomy, first)
    settings = Plan(
        metrics=(),
        sites=(),
        tokens="all",
        max_batches=check_at_least_one("max_batches", max_batches),
        device=None if device is None else check_device(device),
        progress=progress,
        blocks=blocks,
        seed=0,
        name=name or model_name(module),
    )
    scans = dict(_scans(module, anatomy, source, fitting, settings, how.tokenizer))
    kept = {one.name: one for one in fitting}
    return Definitions(settings.name or "", {key: scans[key] for key in kept}, kept, left_out)


def _fitting(
    presets: Sequence[str | Preset] | None, anatomy: Anatomy, first: RawBatch
) -> tuple[list[Preset], dict[str, str]]:
    """Those that fit, and why others do not; one that was named must."""
    asked = list(PRESETS.values()) if presets is None else [find_preset(one) for one in presets]
    if not asked:
        raise expected("at least one preset", "none", "presets=None for all that fit")
    problems = {one.name: problem for one in asked if (problem := _problem(one, anatomy, first)) is not None}
    if problems and (presets is not None or len(problems) == len(asked)):
        raise next(iter(problems.values()))
    return [one for one in asked if one.name not in problems], {name: str(why) for name, why in problems.items()}


def _scans(
    module: nn.Module,
    anatomy: Anatomy,
    source: Source,
    presets: Sequence[Preset],
    settings: Plan,
    tokenizer: Any | None,
) -> Iterator[tuple[str, Scan]]:
    """Presets that look at the same tokens and sites share what is summed there."""
    groups: dict[tuple[str, tuple[str, ...]], list[Preset]] = {}
    for preset in presets:
        groups.setdefault((preset.tokens, preset.sites), []).append(preset)
    plans = []
    for group in groups.values():
        metrics = check_metrics([metric for preset in group for metric in preset.measured], maps=True)
        plans.append(replace(settings, metrics=metrics, sites=group[0].sites, tokens=group[0].tokens))
    scans = one_pass(module, [anatomy], source, plans, tokenizer, label="presets")
    for group, scan in zip(groups.values(), scans, strict=True):
        for preset in group:
            yield preset.name, only(scan, preset, f"{settings.name}, {preset.name}")


def _first_batch(source: Source) -> RawBatch:
    if not source.replayable:
        raise expected("data that can be read twice", "a one-shot iterator", "a list or DataLoader")
    for batch in source.read():
        return batch
    raise expected("at least one batch of data", "none", "data that is not empty")


def _problem(preset: Preset, anatomy: Anatomy, first: RawBatch) -> UnsmoothError | None:
    """Why a preset fits neither this model nor these data."""
    if (problem := misfit(preset, anatomy)) is not None:
        return problem
    absent = [site for site in preset.sites if not anatomy.having([site]) and not anatomy.is_open]
    if absent:
        return expected(f"the sites of preset {preset.name!r}", f"blocks without {absent[0]!r}", "another preset")
    if "words" in preset.needs and token_ids(first, anatomy.reads) is None:
        wanted = f"token ids for preset {preset.name!r}, which compares words,"
        return expected(wanted, "data without", "texts, or another preset")
    if "class token" in preset.needs and image_size(first) is None:
        return expected(f"images for preset {preset.name!r}", "data without", "images")
    return None
