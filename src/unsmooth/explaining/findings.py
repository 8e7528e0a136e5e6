"""Puts what weights and data say of every layer and head into an `Explanation`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from unsmooth.errors import UnsmoothError
from unsmooth.explaining.breakdown import PARTS
from unsmooth.explaining.evidence import Evidence, LayerEvidence
from unsmooth.explaining.manifest import build_manifest
from unsmooth.explaining.result import Breakdown, Explanation, HeadFinding, LayerFinding
from unsmooth.explaining.score import skills
from unsmooth.explaining.spectral import HeadSpectra, LayerSpectra, layer_spectra
from unsmooth.explaining.tiers import TIERS
from unsmooth.explaining.weights import Folded, Weights, fold
from unsmooth.explaining.words import change, reason, sentence
from unsmooth.models import Anatomy, ValueProjection
from unsmooth.scanning.assemble import model_name, not_run
from unsmooth.scanning.data import Source
from unsmooth.scanning.manifest import cut_note
from unsmooth.scanning.together import notes_together, sentences_together


@dataclass
class Explained:
    """One stack, and what data and weights say of it."""

    anatomy: Anatomy
    evidence: Evidence = field(default_factory=Evidence)
    weights: Sequence[Weights] = ()


def assemble(
    module: nn.Module,
    explained: Sequence[Explained],
    refused: Mapping[str, UnsmoothError],
    source: Source | None,
    name: str | None,
) -> Explanation:
    """Verdicts for every layer that ran, or for every block where there is no data, stack by stack.

    Args:
        module: The model.
        explained: Its stacks, with what there is to say of them.
        refused: Why nothing can be said of others, by their names.
        source: The data.
        name: What to call the explanation.
    """
    called, several = name or model_name(module), len(explained) + len(refused) > 1
    out = [f"The {stack} stack was not explained. {error}" for stack, error in refused.items()]
    some = [one for one in explained if (one.evidence.sequences if source else any(two.values for two in one.weights))]
    shown = some or list(explained)
    out += [_left_out(one, source) for one in explained if one not in shown]
    manifest = build_manifest(module, [one.anatomy for one in shown], [one.evidence for one in shown], source)
    out += cut_note(manifest["data"] or {})
    parts = [_of_stack(one, f"{called} · {one.anatomy.stack}" if several else called) for one in shown]
    parts = [replace(one, manifest=manifest, notes=(*one.notes, *out)) for one in parts]
    if len(parts) == 1:
        return parts[0]
    return Explanation(
        name=called,
        layers=tuple(layer for part in parts for layer in part.layers),
        heads=tuple(head for part in parts for head in part.heads),
        manifest=manifest,
        notes=notes_together(parts),
        sentence=sentences_together(parts),
        stacks=tuple(parts),
    )


def _left_out(one: Explained, source: Source | None) -> str:
    if source is None:
        return f"The {one.anatomy.stack} stack was not explained. {one.weights[0].problem}"
    if one.evidence.skipped:
        return f"The {one.anatomy.stack} stack has fewer than two tokens."
    return not_run(one.anatomy)


def _of_stack(explained: Explained, called: str) -> Explanation:
    evidence, stack = explained.evidence, explained.anatomy.stack
    by_path = {one.path: one for one in explained.weights}
    seen: Sequence[LayerEvidence] = evidence.layers or [LayerEvidence(one.path) for one in explained.weights]
    notes = dict(evidence.notes)
    layers: list[LayerFinding] = []
    heads: list[HeadFinding] = []
    for number, found in enumerate(seen, start=1):
        layer, of_heads = _explain_layer(number, by_path[found.path], found, notes, stack)
        layers.append(replace(layer, stack=stack))
        heads += of_heads
    found_skills = skills(layers)
    if (broken := evidence.broken_note()) is not None:
        notes = {broken: None, **notes}
    if evidence.skipped:
        notes[f"{evidence.skipped} sequences of a single token were left out: one token is always alike."] = None
    return Explanation(
        name=called,
        layers=tuple(layers),
        heads=tuple(heads),
        skills=found_skills,
        growth=evidence.growth,
        notes=tuple(notes),
        sentence=sentence(called, layers, found_skills, evidence.growth, broken is not None),
        stack=stack,
    )


def _explain_layer(
    number: int, weights: Weights, found: LayerEvidence, notes: dict[str, None], stack: str
) -> tuple[LayerFinding, list[HeadFinding]]:
    if weights.values is None or weights.problem is not None:
        notes[f"Layer {number}: {weights.problem}"] = None
        return _unexplained(number, weights, found), []
    values = weights.values
    folded = fold(values, found.scale() or 1.0, found.branch_scale())
    maps = [map_HNN.to(values.w_v.device) for map_HNN in found.maps]
    try:
        spectral = layer_spectra(folded, maps)
    except UnsmoothError as error:
        notes[f"Layer {number}: {error}"] = None
        return _unexplained(number, weights, found), []
    layer = _layer(number, values, folded, spectral, found)
    return layer, [
        _head(number, head, values, folded, one, spectral.known_rest, found.scale(), stack)
        for head, one in enumerate(spectral.heads)
    ]


def _unexplained(number: int, weights: Weights, found: LayerEvidence) -> LayerFinding:
    """What data alone says, where the weights could not be read."""
    return LayerFinding(
        layer=number,
        block=weights.path,
        place="unknown" if weights.values is None else weights.values.place,
        scale=found.scale(),
        mean_modulus=math.nan,
        rest_modulus=None,
        margin=math.nan,
        verdict="undecided",
        reason=f"No verdict: {weights.problem or 'its spectra could not be had'}",
        mode_cosine=None,
        flip_scale=None,
        change="",
        eigenvalues=(),
        **_measured(found),
    )


def _layer(
    number: int, values: ValueProjection, folded: Folded, spectral: LayerSpectra, found: LayerEvidence
) -> LayerFinding:
    one, scale = spectral.dominance, found.scale()
    return LayerFinding(
        layer=number,
        block=found.path,
        place=values.place,
        scale=scale,
        mean_modulus=one.mean_modulus,
        rest_modulus=one.rest_modulus if spectral.known_rest else None,
        margin=one.margin,
        verdict=one.verdict,
        reason=reason(one, spectral.known_rest, folded.ignored, scale, values.place),
        mode_cosine=one.mode_cosine,
        flip_scale=spectral.flip_scale,
        change=change(one, spectral.known_rest, spectral.flip_scale, scale, values.place),
        eigenvalues=spectral.cloud,
        drift=_drift(values, found),
        escalation_bound=_escalation_bound(spectral, found),
        **_measured(found),
    )


def _measured(found: LayerEvidence) -> dict[str, Any]:
    """The fields that come from data."""
    if not found.numbers:
        return {}
    names = ("similarity_before", "similarity_after", "cosine_before", "cosine_after", "logit_change", "escalation")
    parts = {part: found.mean(part) for part in PARTS}
    whole = all(value is not None for value in parts.values())
    return {
        **{name: found.mean(name) for name in names},
        "predicted": {tier: value for tier in TIERS if (value := found.mean(tier)) is not None},
        "breakdown": Breakdown(**parts) if whole else None,  # type: ignore[arg-type]
        "gains": found.gains,
        "rebuilt": found.rebuilt,
    }


def _drift(values: ValueProjection, found: LayerEvidence) -> float | None:
    """‖c‖ of the bias push, beside the token mean's norm where data gives it."""
    push = values.drift()
    if push is None:
        return 0.0
    return float(push.double().norm()) / (found.mean("mean_norm") or 1.0)


def _escalation_bound(spectral: LayerSpectra, found: LayerEvidence) -> float | None:
    """P2's floor s(1 − |λ₂|²)/2 for random weights, from the mean |λ₂| over heads."""
    similarity = found.mean("similarity_before")
    seconds = [head.attention["second_eigenvalue"] for head in spectral.heads if head.attention]
    if similarity is None or not seconds:
        return None
    second = sum(seconds) / len(seconds)
    return similarity * (1.0 - second**2) / 2.0


def _head(
    number: int,
    head: int,
    values: ValueProjection,
    folded: Folded,
    found: HeadSpectra,
    known_rest: bool,
    scale: float | None,
    stack: str,
) -> HeadFinding:
    one = found.dominance
    # A norm after the addition acts on all heads together, so a single head is judged without it.
    ignored = (*folded.ignored, "other heads", *(("norm",) if folded.right is not None else ()))
    place = "post" if folded.right is not None else "pre"
    return HeadFinding(
        layer=number,
        head=head,
        kv_head=int(values.kv_of_head[head]),
        mean_modulus=one.mean_modulus,
        rest_modulus=one.rest_modulus if known_rest else None,
        margin=one.margin,
        verdict=one.verdict,
        reason=reason(one, known_rest, ignored, scale if place == "pre" else None, place),
        feature_eigenvalue=one.feature_eigenvalue,
        token_eigenvalue=one.token_eigenvalue,
        mode_cosine=one.mode_cosine,
        flip_scale=found.flip_scale,
        stack=stack,
        **found.shape,
        **found.attention,
    )
