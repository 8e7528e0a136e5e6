"""The edit that `sharpen` and `smooth` are: value weights replaced once, the output weight computed from then on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models.block_parts import part
from unsmooth.remedies.base import CausalForm, Edit
from unsmooth.remedies.derived import derive_weight, is_derived, put_weight
from unsmooth.remedies.site import Site, is_conv1d
from unsmooth.remedies.spectral.form import Form
from unsmooth.remedies.spectral.general import General
from unsmooth.remedies.spectral.gram import Gram, RescaledGram
from unsmooth.remedies.spectral.interval import Interval, Map
from unsmooth.remedies.spectral.orthogonal import Orthogonal
from unsmooth.remedies.spectral.projecting import HeadMaps, distances
from unsmooth.remedies.spectral.schur import Schur
from unsmooth.remedies.spectral.slots import BranchGain, ValueSlots
from unsmooth.spec import Range

Basis: TypeAlias = Literal["schur", "general", "orthogonal", "gram"]
DEFAULT_BASIS: Basis = "schur"


class SpectralEdit(Edit):
    """Keep the eigenvalues of the summed H = W_V W_O between 0 and `sign`·limit.

    The value weights stay where the host has them. The output projection's weight stops being a parameter and is
    computed from them each time it is read, by the form that `basis` names, over the LayerScale γ and whatever number
    multiplies the branch: H has those in it.

    With gradient checkpointing, run the backward pass before the next forward pass: blocks that run again read what the
    last pass brought up to date (B, Q, or V and its inverse), so that gradients of an earlier pass are a little off.
    """

    sign: ClassVar[int]
    paper = "Dovonon, Bronstein & Kusner 2024, arXiv 2401.04301"
    causal: ClassVar[CausalForm] = "unchanged"
    folds = "the computed output weight becomes an ordinary one"
    fold_order = 0
    options: ClassVar[Mapping[str, str]] = {
        "basis": "'schur' (QTQᵀ, T upper triangular: any H with real eigenvalues), 'general' (the paper's VΛV⁻¹, whose "
        "condition is watched), or with a symmetric H 'orthogonal' (VΛVᵀ) or 'gram' (±BBᵀ, the default of old)",
        "eigenvalues": "how free numbers become Λ: 'clip' each to the interval, passing gradients; 'rescale' all of a "
        "layer by one factor that has no gradient (only 'gram', as it was at first); 'sigmoid' or 'square' of ψ (not "
        "'gram'). ±ψ² has no bound: it is how the paper's first version smooths (+ψ²). Sharpening, which clips there, "
        "turns into smoothing with −ψ² past −2/(1+m), m the smallest eigenvalue of attention",
        "start": "'project' (near to the weights there are, head by head) or 'fresh' (random orthonormal columns and "
        "equal eigenvalues); a plain checkpoint that is loaded later is treated alike",
        "limit": "largest absolute eigenvalue of the summed H; past 1 as a control, None for any of the right sign",
        "size": "with start='fresh', where all eigenvalues start, as a share of the limit; the paper's is not known",
        "upper": "with basis='schur', largest Frobenius norm of T above its diagonal, so ‖H‖₂ ≤ limit + upper; "
        "None leaves it free",
    }

    def __init__(
        self,
        site: Site,
        *,
        basis: Basis = DEFAULT_BASIS,
        eigenvalues: Map = "clip",
        start: Literal["project", "fresh"] = "project",
        limit: Annotated[float, Range(0.001, math.inf, below=True)] | None = 1.0,
        size: Annotated[float, Range(0.0, 1.0)] = 0.5,
        upper: Annotated[float, Range(0.001, math.inf, below=True)] | None = None,
    ) -> None:
        super().__init__(site)
        _check_options(basis, eigenvalues, limit, upper)
        interval = Interval(self.sign, math.inf if limit is None else limit)
        self.start, self.size = start, size
        slots, like = ValueSlots(site), site.like_weights()
        self.form: Form
        if basis == "gram":
            rescaled = eigenvalues == "rescale" and limit is not None
            self.form = (RescaledGram if rescaled else Gram)(slots, interval)
        elif basis == "schur":
            self.form = Schur(slots, interval, eigenvalues, like, upper)
        else:
            self.form = (Orthogonal if basis == "orthogonal" else General)(slots, interval, eigenvalues, like)
        self.gain = BranchGain(site)
        self.output_in_out = is_conv1d(part(site.block, site.wiring.weights.output))
        self.replaced: Replaced | None = None
        self.distances: dict[str, float] = {}

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Value heads that are together wider than the stream, or an output weight that is computed already."""
        if (reason := site.why_not_written()) is not None:
            return reason
        heads = site.wiring.weights.heads
        if heads.key_value * heads.dim > site.dim:
            return (
                f"its {heads.key_value} value heads of width {heads.dim} are together wider than the stream "
                f"({site.dim}), so V cannot have independent columns and H no eigenvalue for each of them"
            )
        if is_derived(part(site.block, site.wiring.weights.output)):
            return "another remedy computes its output weight already"
        return BranchGain(site).refusal()

    @classmethod
    def prepare(cls, edits: Sequence[Edit]) -> None:
        """Bring what depends on the value weights up to date, all layers together."""
        forms: dict[type[Form], list[Form]] = {}
        for edit in edits:
            if isinstance(edit, SpectralEdit):
                forms.setdefault(type(edit.form), []).append(edit.form)
        for kind, found in forms.items():
            kind.prepare(found)

    @classmethod
    def recorded(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Before `upper` there was one Gram form, the default, and it was rescaled."""
        if "upper" in options or options.get("basis", "gram") != "gram":
            return dict(options)
        return {**options, "basis": "gram", "eigenvalues": "rescale"}

    def output_weight(self) -> Tensor:
        """The output projection's weight, as its module stores it."""
        rows_FD, gain = self.form.output_rows(), self.gain.now()
        rows_FD = rows_FD if gain is None else (rows_FD / gain).to(rows_FD.dtype)
        return rows_FD if self.output_in_out else rows_FD.mT

    @torch.no_grad()
    def install(self, site: Site) -> None:
        """Replace the value weights and have the output weight computed."""
        module, slots = part(site.block, site.wiring.weights.output), self.form.slots
        self.replaced = Replaced(site, slots)
        gain = self.gain.now()
        before = self._heads(self.replaced.value_GED, site.output_matrix(), gain)
        derive_weight(module, self.output_weight)
        self._begin(before)
        bias = module._parameters.get("bias")
        value_bias = getattr(slots.module, site.wiring.weights.value_bias, None)
        if bias is not None and value_bias is not None and self.start == "project":
            bias.add_(self._drift(site, before, value_bias, gain).to(bias.dtype))

    def remove(self, site: Site) -> None:
        """The weights that were replaced come back."""
        if self.replaced is not None:
            self.replaced.put_back(site, self.form.slots)

    @torch.no_grad()
    def fold(self, site: Site) -> None:
        """Write the computed weight down."""
        assert self.replaced is not None, "installed before it is folded"
        refuse_shards(self.form.slots)
        self.form.make_exact()
        weight = self.output_weight().detach().clone(memory_format=torch.contiguous_format)
        put_weight(part(site.block, site.wiring.weights.output), self.replaced.output_holding(weight))

    @torch.no_grad()
    def adopt(self, state: dict[str, Any], prefix: str, block_prefix: str, site: Site) -> None:
        """Do with a plain checkpoint as with the weights there were; `undo` will give back what was loaded."""
        wiring, slots = site.wiring, self.form.slots
        at_value, at_output = f"{block_prefix}{wiring.weights.value}.", f"{block_prefix}{wiring.weights.output}."
        value: Any = state.get(at_value + wiring.weights.value_weight)
        output: Any = state.get(at_output + "weight")
        unfit = value is None or output is None or value.shape != slots.parameter().shape
        if unfit or self.replaced is None or slots.sharded():
            super().adopt(state, prefix, block_prefix, site)
            return
        bias, value_bias = state.get(at_output + "bias"), state.get(at_value + wiring.weights.value_bias)
        self.replaced.now_is(slots.rows_of(value), output, bias)
        if self.start == "project":
            there = {"device": slots.parameter().device}
            output_FD = (output if self.output_in_out else output.mT).to(**there)
            gain = self.gain.loaded(state, block_prefix)
            gain = gain.to(device=there["device"]) if isinstance(gain, Tensor) else gain
            before = self._heads(slots.rows_of(value.to(**there)), output_FD, gain)
            self._begin(before)
            if bias is not None and value_bias is not None:
                drift = self._drift(site, before, value_bias.to(**there), gain)
                state[at_output + "bias"] = bias + drift.to(bias)
        state[at_value + wiring.weights.value_weight] = value = value.clone()
        slots.rows_of(value).copy_(slots.whole())
        del state[at_output + "weight"]
        super().adopt(state, prefix, block_prefix, site)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw anew what was drawn, as for a model with random weights; what was projected follows its weights."""
        if self.start == "fresh" and self.form.installed:
            self._begin(None)

    def _begin(self, before: HeadMaps | None) -> None:
        """Put in the value weights to start with."""
        near = before if self.start == "project" else None
        self.form.slots.write(self.form.begin(near, self.size))
        self.form.noted.held.clear()
        self.form.installed = True
        self.form.make_exact()
        if near is not None:
            self.distances = distances(near, self._now())

    def _drift(self, site: Site, before: HeadMaps, value_bias: Tensor, gain: Tensor | float | None) -> Tensor:
        """What the output bias has to make up for (D,): Σ b_V(W_O − W_O′), which γ multiplies as it does W_O.

        Value biases add the same vector to every token, by way of W_O. That is no matter of spectra, so it stays.
        """
        bias_GE = site.wiring.weights.layout.values(value_bias.detach(), site.wiring.weights.heads)
        drift_D = torch.einsum("ge,ged->d", bias_GE.to(before.w_GED), before.w_GED - self._now().w_GED)
        return drift_D if gain is None else drift_D / gain

    def _now(self) -> HeadMaps:
        weight = self.output_weight()
        return self._heads(self.form.slots.whole(), weight if self.output_in_out else weight.mT, self.gain.now())

    def report(self) -> Mapping[str, float]:
        """Distance from the weights it was projected from, and what the form has to say."""
        return {**self.distances, **self.form.report()}

    def _heads(self, value_GED: Tensor, output_FD: Tensor, gain: Tensor | float | None) -> HeadMaps:
        """H by value heads, in working precision: those of query heads that read the same value head are added up."""
        slots = self.form.slots
        heads = (slots.heads.key_value, slots.group, slots.heads.dim)
        exact = slots.exact_dtype()
        rows_GED = output_FD.detach().to(exact).reshape(*heads, -1).sum(dim=1)
        return HeadMaps(value_GED.to(exact), rows_GED if gain is None else rows_GED * gain)


def _check_options(basis: Basis, eigenvalues: Map, limit: float | None, upper: float | None) -> None:
    """Refuse what does not go together."""
    if basis == "gram" and eigenvalues in ("sigmoid", "square"):
        got = f"eigenvalues={eigenvalues!r} with basis='gram', which has no ψ"
        raise expected("eigenvalues='clip' or 'rescale' with basis='gram'", got, "basis='schur'")
    if basis != "gram" and eigenvalues == "rescale":
        raise expected("basis='gram' with eigenvalues='rescale'", f"basis={basis!r}", "eigenvalues='clip'")
    if eigenvalues == "square" and limit not in (1.0, None):
        raise expected("limit=None with eigenvalues='square', which has no bound", repr(limit), "eigenvalues='clip'")
    if eigenvalues == "sigmoid" and limit is None:
        raise expected("a limit with eigenvalues='sigmoid'", "limit=None", "eigenvalues='clip'")
    if upper is not None and basis != "schur":
        raise expected("basis='schur' with upper, which caps its T", f"basis={basis!r}", "leaving out upper")


class Replaced:
    """Value weights, output weight and output bias of one block as they were, to be put back.

    A plain object: copied with the model, but not saved, trained or moved with it.
    """

    def __init__(self, site: Site, slots: ValueSlots) -> None:
        module = part(site.block, site.wiring.weights.output)
        output = module._parameters["weight"]
        assert output is not None, "a projection has a weight"
        bias = module._parameters.get("bias")
        self.value_GED = slots.whole().clone()
        self.output: nn.Parameter = output
        self.bias: Tensor | None = None if bias is None else bias.detach().clone()

    @torch.no_grad()
    def put_back(self, site: Site, slots: ValueSlots) -> None:
        """Undo it all."""
        refuse_shards(slots)
        module = part(site.block, site.wiring.weights.output)
        slots.write(self.value_GED)
        now = slots.parameter()  # the model may have been moved or cast
        put_weight(module, self.output_holding(self.output.data.to(device=now.device, dtype=now.dtype)))
        bias = module._parameters.get("bias")
        if self.bias is not None and bias is not None:
            bias.copy_(self.bias)

    def output_holding(self, weight: Tensor) -> nn.Parameter:
        """The parameter that was the output weight, with other numbers in it."""
        self.output.data = weight
        self.output.grad = None
        return self.output

    def now_is(self, value_GED: Tensor, output: Tensor, bias: Tensor | None) -> None:
        """Other weights were loaded: these are to be put back."""
        self.value_GED = value_GED.detach().clone()
        self.output.data = output.detach().clone()
        self.bias = None if bias is None else bias.detach().clone()


def refuse_shards(slots: ValueSlots) -> None:
    """A model that is spread over processes cannot get or lose parameters."""
    if slots.sharded():
        raise expected("whole weights", "sharded ones", "unsmooth.fold on a model that is not sharded")
