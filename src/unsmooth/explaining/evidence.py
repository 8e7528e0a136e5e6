"""What data says of each layer, gathered batch by batch: numbers per sequence, a few attention maps, a Jacobian."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError
from unsmooth.explaining.breakdown import break_down
from unsmooth.explaining.growth import stack_growth
from unsmooth.explaining.jacobian import BlockMap, Split, gains
from unsmooth.explaining.observe import BatchView, LayerView
from unsmooth.explaining.result import Gains, Growth
from unsmooth.explaining.tiers import TIERS, foretell, logit_similarity
from unsmooth.explaining.weights import Weights, branch_scale, rebuilding_error, stream_scale
from unsmooth.functional import escalation_rate, mean_cosine
from unsmooth.models import row_sum_error
from unsmooth.models.stored import is_quantised

# Attention whose rows are further from 1 than this has another theory.
ROW_SUM_TOLERANCE = 1e-3
# Tokens above which attention is not decomposed: it takes their number cubed, for each head of each layer.
LARGEST_MAP = 1024
# An attention branch that is further, relative to its largest entry, from what weights and maps give has more to it.
REBUILT, REBUILT_IN_HALF = 1e-3, 5e-2


@dataclass
class LayerEvidence:
    """One layer over all batches: `numbers` are per-sequence values by name."""

    path: str
    numbers: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    scales: list[Tensor] = field(default_factory=list)
    branch_scales: list[Tensor] = field(default_factory=list)
    maps: list[Tensor] = field(default_factory=list)
    gains: Gains | None = None
    rebuilt: float | None = None
    maps_explain: bool = False

    def mean(self, name: str) -> float | None:
        """Mean over sequences of what is finite; None where nothing is."""
        values = [value for value in self.numbers.get(name, ()) if math.isfinite(value)]
        return sum(values) / len(values) if values else None

    def scale(self) -> float | None:
        """Median σ over tokens."""
        return _median(self.scales)

    def branch_scale(self) -> float | None:
        """Median σ of the branch under a norm on it."""
        return _median(self.branch_scales)


@dataclass
class Evidence:
    """All layers, and what went missing on the way."""

    layers: list[LayerEvidence] = field(default_factory=list)
    sequences: int = 0
    tokens: int = 0
    skipped: int = 0
    notes: dict[str, None] = field(default_factory=dict)
    growth: Growth | None = None
    digests: list[bytes] = field(default_factory=list)
    broken_at: dict[int, int] = field(default_factory=dict)
    drawing: dict[str, torch.Generator] = field(
        default_factory=lambda: {tier: torch.Generator().manual_seed(0) for tier in TIERS}
    )

    def add(self, view: BatchView, weights: dict[str, Weights], spectral_sequences: int, jacobian: bool) -> None:
        """Take one batch in."""
        long_B = view.real_BN.sum(dim=1) >= 2
        self.skipped += int((~long_B).sum())
        self.sequences += int(long_B.sum())
        self.tokens += int(view.real_BN[long_B].sum())
        if not bool(long_B.any()):
            return  # and the Jacobians wait for a batch that has differences
        self._note_what_is_missing(view)
        if not self.layers:
            self.layers = [LayerEvidence(layer.path) for layer in view.layers]
        if len(self.layers) != len(view.layers):
            raise UnsmoothError(
                f"Expected {len(self.layers)} layers as in the first batch but got {len(view.layers)}. "
                f"Try a model whose depth does not change from batch to batch."
            )
        whole = self._finite_layers(view, long_B)
        for number, (found, layer, good_B) in enumerate(zip(self.layers, view.layers, whole, strict=True), start=1):
            if bool(good_B.any()):
                # A sequence without tokens is left out everywhere.
                real_BN = (view.real_BN & good_B.unsqueeze(-1)).to(layer.sites["output"].device)
                self._add_layer(number, found, layer, real_BN, weights[layer.path], spectral_sequences, jacobian)
        self._foretell(view, whole, weights)
        if jacobian and self.growth is None:
            self._follow_stack(replace(view, real_BN=view.real_BN & whole[-1].unsqueeze(-1)))

    def _add_layer(
        self,
        number: int,
        found: LayerEvidence,
        layer: LayerView,
        real_BN: Tensor,
        weights: Weights,
        spectral_sequences: int,
        jacobian: bool,
    ) -> None:
        split, good_B = Split(real_BN), real_BN.any(dim=1)
        self._measure(found, layer, split, good_B)
        self._weigh(found, layer, real_BN, weights)
        found.maps_explain = self._maps_explain(number, found, layer, real_BN, weights)
        if found.maps_explain and (wanted := spectral_sequences - len(found.maps)) > 0:
            self._keep_maps(found, layer, real_BN, good_B, wanted)
        if jacobian and found.gains is None:
            self._differentiate(number, found, layer, split)

    def _finite_layers(self, view: BatchView, long_B: Tensor) -> list[Tensor]:
        """For each layer the sequences (batch,) that are whole up to its output; notes where others break."""
        streams = [view.layers[0].sites["input"], *(layer.sites["output"] for layer in view.layers)]
        whole = [long_B]
        for number, stream in enumerate(streams):
            finite_BN = stream.isfinite().all(dim=-1).to(view.real_BN.device)
            fine_B = ~(~finite_BN & view.real_BN).any(dim=1)
            breaking = int((whole[-1] & ~fine_B).sum())
            if breaking:
                self.broken_at[number] = self.broken_at.get(number, 0) + breaking
            whole.append(whole[-1] & fine_B)
        return whole[2:]

    def broken_note(self) -> str | None:
        """Where activations were NaN or Inf, in words; None where nowhere."""
        if not self.broken_at:
            return None
        places = ", ".join(f"layer {layer} ({count})" for layer, count in sorted(self.broken_at.items()))
        return f"NaN or Inf activations first at {places}: from there on these sequences are left out."

    def _note_what_is_missing(self, view: BatchView) -> None:
        for reason in view.missing_maps:
            self.notes[reason] = None
        if any(layer.kwargs.get("encoder_hidden_states") is not None for layer in view.layers):
            self.notes[
                "Blocks also attend to another sequence (cross-attention): its maps are rectangular and no theory here "
                "is about them. Verdicts are about self-attention; what it does is counted under norm."
            ] = None

    def _measure(self, found: LayerEvidence, layer: LayerView, split: Split, long_B: Tensor) -> None:
        before, after = layer.sites["input"], layer.sites["output"]
        values = {
            "similarity_before": split.similarity(before),
            "similarity_after": split.similarity(after),
            "cosine_before": mean_cosine(before, split.real_BN),
            "cosine_after": mean_cosine(after, split.real_BN),
            "logit_change": logit_similarity(split, after) - logit_similarity(split, before),
            "escalation": escalation_rate(before.double(), after.double(), split.real_BN),
            "mean_norm": split.energy(split.mean_part(before)).div(split.real_BN.sum(dim=1)).sqrt(),
        }
        values |= break_down(layer.sites, split) or {}
        for name, numbers_B in values.items():
            found.numbers[name] += numbers_B[long_B].double().tolist()

    def _weigh(self, found: LayerEvidence, layer: LayerView, real_BN: Tensor, weights: Weights) -> None:
        values, before = weights.values, layer.sites["input"]
        if values is None:
            return
        if values.place == "post":
            if "attention" not in layer.sites:
                return
            before = before + layer.sites["attention"]
        found.scales.append(stream_scale(values, before[real_BN].float()).cpu())
        if layer.maps_BHNN is not None and "normed" in layer.sites:
            scale_BN = branch_scale(values, layer.maps_BHNN, layer.sites["normed"])
            if scale_BN is not None:
                found.branch_scales.append(scale_BN[real_BN].cpu())

    def _foretell(self, view: BatchView, whole: Sequence[Tensor], weights: Mapping[str, Weights]) -> None:
        """What every tier says of every layer, for the sequences that are whole throughout; NaN for the others."""
        real_BN = view.real_BN & whole[-1].unsqueeze(-1)
        attention = [
            (value, layer.maps_BHNN)
            if found.maps_explain and (value := weights[layer.path].values) is not None and layer.maps_BHNN is not None
            else None
            for layer, found in zip(view.layers, self.layers, strict=True)
        ]
        for name, tier in TIERS.items():
            told = foretell(tier, view.layers, real_BN, attention, self.drawing[name])
            try:
                for change_B, found, good_B in zip(told, self.layers, whole, strict=True):
                    if change_B is not None:
                        found.numbers[name] += change_B[good_B.to(change_B.device)].tolist()
            except (RuntimeError, NotImplementedError) as error:
                self.notes[f"{name} foretells nothing past a layer that cannot be run again: {_first_line(error)}."] = (
                    None
                )

    def _maps_explain(
        self, number: int, found: LayerEvidence, layer: LayerView, real_BN: Tensor, weights: Weights
    ) -> bool:
        """Whether the theory of attention whose rows sum to one is about what this layer does."""
        if layer.maps_BHNN is None:
            return False
        error = row_sum_error(layer.maps_BHNN.masked_fill(~real_BN[:, None, None], 0.0), real_BN)
        if not error <= ROW_SUM_TOLERANCE:
            self.notes[
                f"Rows of attention at layer {number} are up to {error:.2g} away from summing to one (talking heads, "
                f"differential or gated attention, padding that is looked at, or NaN): equal tokens do not stay equal "
                f"there, so its verdict is from weights alone."
            ] = None
            return False
        if weights.values is None or not {"attention", "normed"} <= set(layer.sites):
            return True
        found.rebuilt = rebuilding_error(weights.values, layer.maps_BHNN, layer.sites, real_BN)
        exact = layer.sites["input"].dtype in (torch.float32, torch.float64) and not is_quantised(layer.block)
        if not found.rebuilt <= (REBUILT if exact else REBUILT_IN_HALF):
            self.notes[_not_rebuilt(number, found.rebuilt, weights.values.unseen)] = None
            return False
        return True

    def _keep_maps(self, found: LayerEvidence, layer: LayerView, real_BN: Tensor, long_B: Tensor, most: int) -> None:
        assert layer.maps_BHNN is not None
        tokens = int(real_BN.sum(dim=1).max())
        if tokens > LARGEST_MAP:
            said = f"Attention of {tokens} tokens is not decomposed, so verdicts are from weights alone."
            self.notes[f"{said} Up to {LARGEST_MAP} it is."] = None
            return
        for sequence in long_B.nonzero().flatten().tolist()[:most]:
            real_N = real_BN[sequence]
            found.maps.append(layer.maps_BHNN[sequence][:, real_N][:, :, real_N].float().cpu())

    def _differentiate(self, number: int, found: LayerEvidence, layer: LayerView, split: Split) -> None:
        try:
            found.gains = gains(BlockMap(layer, split))
        except (RuntimeError, NotImplementedError) as error:
            self.notes[f"The Jacobian of layer {number} could not be had: {_first_line(error)}."] = None

    def _follow_stack(self, view: BatchView) -> None:
        try:
            found = stack_growth(view)
        except (RuntimeError, NotImplementedError) as error:
            self.notes[f"Growth over the stack could not be had: {_first_line(error)}."] = None
            return
        if math.isfinite(found.margin):
            self.growth = found
        else:
            self.notes["Growth over the stack could not be had: on the way it is zero, NaN or Inf."] = None


def _not_rebuilt(number: int, error: float, remedies: tuple[str, ...]) -> str:
    if remedies:
        return (
            f"What {' and '.join(remedies)} does to attention is in no weight: where it acts, verdicts are from "
            f"weights alone and leave it out."
        )
    return (
        f"The attention output of layer {number} is not what its weights and attention give (off by {error:.2g}): "
        f"something else happens in between, such as gates or heads that talk to one another, so its verdict is from "
        f"weights alone."
    )


def _median(parts: list[Tensor]) -> float | None:
    values = torch.cat(parts) if parts else torch.empty(0)
    values = values[values.isfinite()]
    return float(values.median()) if len(values) else None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
