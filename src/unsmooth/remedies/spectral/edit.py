"""The edit that `sharpen` and `smooth` are: value weights replaced once, the output weight computed from then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.models.block_parts import part
from unsmooth.remedies.base import CausalForm, Edit
from unsmooth.remedies.derived import derive_weight, is_derived, put_weight
from unsmooth.remedies.site import Site, is_conv1d
from unsmooth.remedies.spectral.form import Form
from unsmooth.remedies.spectral.general import General
from unsmooth.remedies.spectral.gram import Gram
from unsmooth.remedies.spectral.interval import Interval, Map
from unsmooth.remedies.spectral.orthogonal import Orthogonal
from unsmooth.remedies.spectral.projecting import HeadMaps, distances
from unsmooth.remedies.spectral.replaced import Replaced, refuse_shards
from unsmooth.remedies.spectral.slots import ValueSlots
from unsmooth.spec import Range

Basis: TypeAlias = Literal["gram", "orthogonal", "general"]


class SpectralEdit(Edit):
    """Keep the eigenvalues of the summed H = W_V W_O between 0 and `sign`·limit.

    The value weights stay where the host has them. The output projection's weight stops being a parameter and is
    computed from them each time it is read, by the form that `basis` names.

    With gradient checkpointing, run the backward pass before the next forward pass: blocks that run again read what the
    last pass brought up to date (σ₁ of the Gram form, V of the orthogonal one), so that gradients of an earlier pass
    are a little off.
    """

    sign: ClassVar[int]
    paper = "Dovonon, Bronstein & Kusner 2024, arXiv 2401.04301"
    causal: ClassVar[CausalForm] = "unchanged"
    folds = "the computed output weight becomes an ordinary one"
    fold_order = 0
    options: ClassVar[Mapping[str, str]] = {
        "basis": "'gram' (H = ±BBᵀ), 'orthogonal' (VΛVᵀ) or 'general' (the paper's VΛV⁻¹, whose condition is watched)",
        "eigenvalues": "how ψ becomes Λ: 'clip' to the interval, passing gradients; 'sigmoid'; 'square' (±ψ², of the "
        "paper's first version, has no bound: past −2/(1+m), m the smallest eigenvalue of attention, sharpening turns "
        "into smoothing). The Gram form has no ψ and takes 'clip' only",
        "start": "'project' (as near to the weights there are as the interval allows, head by head) or 'fresh' (random "
        "orthonormal columns and equal eigenvalues); a plain checkpoint that is loaded later is treated alike",
        "limit": "largest absolute eigenvalue of the summed H, up to 1",
        "size": "with start='fresh', where all eigenvalues start, as a share of the limit; the paper's is not known",
    }

    def __init__(
        self,
        site: Site,
        *,
        basis: Basis = "gram",
        eigenvalues: Map = "clip",
        start: Literal["project", "fresh"] = "project",
        limit: Annotated[float, Range(0.001, 1.0)] = 1.0,
        size: Annotated[float, Range(0.0, 1.0)] = 0.5,
    ) -> None:
        super().__init__(site)
        if basis == "gram" and eigenvalues != "clip":
            got = f"eigenvalues={eigenvalues!r} with basis='gram', which has no ψ"
            raise expected("eigenvalues='clip' with basis='gram'", got, "basis='orthogonal'")
        if eigenvalues == "square" and limit != 1.0:
            raise expected("limit=1.0 with eigenvalues='square', which has no bound", repr(limit), "eigenvalues='clip'")
        interval = Interval(self.sign, limit)
        self.start, self.size = start, size
        slots = ValueSlots(site)
        self.form: Form
        if basis == "gram":
            self.form = Gram(slots, interval)
        else:
            kind = Orthogonal if basis == "orthogonal" else General
            self.form = kind(slots, interval, eigenvalues, site.like_weights())
        self.output_in_out = is_conv1d(part(site.block, site.wiring.output))
        self.replaced: Replaced | None = None
        self.distances: dict[str, float] = {}

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Value heads that are together wider than the stream, or an output weight that is computed already."""
        heads = site.wiring.heads
        if heads.key_value * heads.dim > site.dim:
            return (
                f"its {heads.key_value} value heads of width {heads.dim} are together wider than the stream "
                f"({site.dim}), so V cannot have independent columns and H no eigenvalue for each of them"
            )
        if is_derived(part(site.block, site.wiring.output)):
            return "another remedy computes its output weight already"
        return None

    @classmethod
    def prepare(cls, edits: Sequence[Edit]) -> None:
        """Bring what depends on the value weights up to date, all layers together."""
        forms = [edit.form for edit in edits if isinstance(edit, SpectralEdit)]
        for kind in (Gram, Orthogonal, General):
            found = [form for form in forms if type(form) is kind]
            if found:
                kind.prepare(found)

    def output_weight(self) -> Tensor:
        """The output projection's weight, as its module stores it."""
        rows_FD = self.form.output_rows()
        return rows_FD if self.output_in_out else rows_FD.mT

    @torch.no_grad()
    def install(self, site: Site) -> None:
        """Replace the value weights and have the output weight computed."""
        module, slots = part(site.block, site.wiring.output), self.form.slots
        self.replaced = Replaced(site, slots)
        before = self._heads(self.replaced.value_GED, site.output_matrix())
        derive_weight(module, self.output_weight)
        self._begin(before)
        bias = module._parameters.get("bias")
        value_bias = getattr(slots.module, site.wiring.value_bias, None)
        if bias is not None and value_bias is not None and self.start == "project":
            bias.add_(self._drift(site, before, value_bias).to(bias.dtype))

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
        put_weight(part(site.block, site.wiring.output), self.replaced.output_holding(weight))

    @torch.no_grad()
    def adopt(self, state: dict[str, Any], prefix: str, block_prefix: str, site: Site) -> None:
        """Do with a plain checkpoint as with the weights there were; `undo` will give back what was loaded."""
        wiring, slots = site.wiring, self.form.slots
        at_value, at_output = f"{block_prefix}{wiring.value}.", f"{block_prefix}{wiring.output}."
        value: Any = state.get(at_value + wiring.value_weight)
        output: Any = state.get(at_output + "weight")
        unfit = value is None or output is None or value.shape != slots.parameter().shape
        if unfit or self.replaced is None or slots.sharded():
            super().adopt(state, prefix, block_prefix, site)
            return
        bias, value_bias = state.get(at_output + "bias"), state.get(at_value + wiring.value_bias)
        self.replaced.now_is(slots.rows_of(value), output, bias)
        if self.start == "project":
            there = {"device": slots.parameter().device}
            output_FD = (output if self.output_in_out else output.mT).to(**there)
            before = self._heads(slots.rows_of(value.to(**there)), output_FD)
            self._begin(before)
            if bias is not None and value_bias is not None:
                state[at_output + "bias"] = bias + self._drift(site, before, value_bias.to(**there)).to(bias)
        state[at_value + wiring.value_weight] = value = value.clone()
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

    def _drift(self, site: Site, before: HeadMaps, value_bias: Tensor) -> Tensor:
        """What the output bias has to make up for (D,): Σ b_V(W_O − W_O′).

        Value biases add the same vector to every token, by way of W_O. That is no matter of spectra, so it stays.
        """
        bias_GE = site.wiring.layout.values(value_bias.detach(), site.wiring.heads)
        return torch.einsum("ge,ged->d", bias_GE.to(before.w_GED), before.w_GED - self._now().w_GED)

    def _now(self) -> HeadMaps:
        weight = self.output_weight()
        return self._heads(self.form.slots.whole(), weight if self.output_in_out else weight.mT)

    def report(self) -> Mapping[str, float]:
        """Distance from the weights it was projected from, and what the form has to say."""
        return {**self.distances, **self.form.report()}

    def _heads(self, value_GED: Tensor, output_FD: Tensor) -> HeadMaps:
        """H by value heads, in working precision: those of query heads that read the same value head are added up."""
        slots = self.form.slots
        heads = (slots.heads.key_value, slots.group, slots.heads.dim)
        exact = slots.exact_dtype()
        return HeadMaps(value_GED.to(exact), output_FD.detach().to(exact).reshape(*heads, -1).sum(dim=1))
