"""What an explanation holds: verdicts with their reasons, and what was predicted beside what was measured.

Every number that needs data is None where there was none, or where it could not be had; `notes` then says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unsmooth.errors import expected
from unsmooth.spectra.verdict import Verdict

if TYPE_CHECKING:
    import pandas

VERDICTS: Mapping[str, str] = {
    "smoothing": "modes in which all tokens are equal grow fastest: repeated, the layer makes tokens alike",
    "sharpening": "modes in which tokens differ grow fastest: repeated, the layer keeps them apart",
    "preserving": "nothing grows on either side: the layer hands on what differs as it hands on what is common",
    "undecided": "both sides grow at the same rate within 0.1 %",
}


@dataclass(frozen=True)
class HeadFinding:
    """One head of one layer, as if it were alone in the layer: X ← X + A X H.

    Attributes:
        layer: From 1, as in a scan.
        head: Query head from 0.
        kv_head: The key/value head it reads.
        mean_modulus: Largest |1 + λ/σ|: growth of the fastest mode in which all tokens are equal.
        rest_modulus: Largest |1 + μλ/σ| with μ ≠ 1: growth of the fastest other mode; None without attention maps.
        margin: log(mean_modulus / rest_modulus), with 1 for an unknown rest (attention that averages all tokens).
        verdict: One of `VERDICTS`.
        reason: The verdict in a sentence, with what it leaves out.
        feature_eigenvalue: λ of the dominating mode.
        token_eigenvalue: μ of the dominating mode: 1 where the token mean dominates.
        mode_cosine: Mean pairwise cosine of the dominating mode's tokens: 1 where all are equal.
        flip_scale: The σ of the stream at which the verdict turns, under averaging attention; None where it never does.
        asymmetry: ‖H − Hᵀ‖ / (2‖H‖): 0 symmetric, 1 antisymmetric.
        condition: Condition number of the eigenvectors of H's nonzero part; large where eigenvalues mislead.
        range_low: Left end of the real part of H's numerical range.
        range_high: Right end of it: one layer can already grow tokens by 1 + range_high.
        second_eigenvalue: Largest |μ| of attention besides 1, mean over sequences; likewise the next three.
        quotient_norm: ‖(I − Π) A (I − Π)‖₂, the largest growth in one step of what differs.
        dobrushin: Half the largest 1-norm distance of two rows of A.
        entropy: Mean row entropy over its maximum.
        random_second_eigenvalue: |μ₂| that one in twenty random Markov matrices of the same size and entropy exceeds.
        softmax_second_eigenvalue: The same of softmaxes of random logits, whose larger entries make it larger.
        stack: Which of several stacks it is in; else nothing. Likewise for layers.
    """

    layer: int
    head: int
    kv_head: int
    mean_modulus: float
    rest_modulus: float | None
    margin: float
    verdict: Verdict
    reason: str
    feature_eigenvalue: complex
    token_eigenvalue: complex | None
    mode_cosine: float | None
    flip_scale: float | None
    asymmetry: float
    condition: float
    range_low: float
    range_high: float
    second_eigenvalue: float | None = None
    quotient_norm: float | None = None
    dobrushin: float | None = None
    entropy: float | None = None
    random_second_eigenvalue: float | None = None
    softmax_second_eigenvalue: float | None = None
    stack: str = ""


@dataclass(frozen=True)
class Gains:
    """A block's Jacobian at real activations, split by Π, the mean over tokens: 2-norms of the four parts.

    `collapsed_mean` and `collapsed_rest` are the spectral radii of the two parts at the point where all tokens equal
    their mean, at which the split is exact: which of them is larger says whether collapse is stable there.
    """

    mean: float
    rest: float
    mean_to_rest: float
    rest_to_mean: float
    collapsed_mean: float | None = None
    collapsed_rest: float | None = None


@dataclass(frozen=True)
class Breakdown:
    """The measured change of t_sim over one layer, as shares that sum to it.

    `attention_mean` is what the token mean of the attention branch does, `attention_rest` what the rest of it does,
    `mlp` the MLP branch, `norm` the norms on the stream (post-norm blocks; 0 where they stand inside branches).
    """

    attention_mean: float
    attention_rest: float
    mlp: float
    norm: float

    @property
    def total(self) -> float:
        """The change that the four sum to."""
        return self.attention_mean + self.attention_rest + self.mlp + self.norm


@dataclass(frozen=True)
class LayerFinding:
    """One layer with all its heads.

    Attributes:
        layer: From 1, as in a scan.
        block: Module path of its block.
        place: Where its norm stands: "pre" or "post" the attention branch.
        scale: σ, what the norm divides the stream by, median over tokens; None without data.
        mean_modulus: Growth of the fastest mode in which all tokens are equal, all heads together, norm folded in.
        rest_modulus: Growth of the fastest other mode; None without attention maps.
        margin: log(mean_modulus / rest_modulus), with 1 for an unknown rest.
        verdict: One of `VERDICTS`.
        reason: The verdict in a sentence, with what it leaves out.
        mode_cosine: Mean pairwise cosine of the dominating mode's tokens.
        flip_scale: The σ at which the verdict turns, under averaging attention; None where it never does.
        change: What would change the verdict, in words.
        eigenvalues: Of the summed H with the norm folded in at σ (1 without data): the cloud.
        drift: Norm of the bias push 1cᵀ, relative to the token mean with data; no spectrum sees it.
        gains: The block's Jacobian at real activations.
        similarity_before: t_sim of the stream that enters, mean over sequences.
        similarity_after: t_sim of the stream that leaves.
        cosine_before: Mean cosine of the stream that enters.
        cosine_after: Mean cosine of the stream that leaves.
        logit_change: Measured change of logit t_sim, log(‖ΠX‖²/‖(I − Π)X‖²), mean over sequences.
        predicted: Tier to the change of logit t_sim that it foretells; what a tier knows is in `Explanation.skills`.
        breakdown: The measured change of t_sim by cause.
        escalation: P2's escalation rate, measured.
        escalation_bound: Its lower bound s(1 − |λ₂|²)/2 from t_sim and |λ₂|, for random weights.
        rebuilt: Error of the attention branch rebuilt from weights and maps, relative to its largest entry.
    """

    layer: int
    block: str
    place: str
    scale: float | None
    mean_modulus: float
    rest_modulus: float | None
    margin: float
    verdict: Verdict
    reason: str
    mode_cosine: float | None
    flip_scale: float | None
    change: str
    eigenvalues: tuple[complex, ...]
    drift: float | None = None
    gains: Gains | None = None
    similarity_before: float | None = None
    similarity_after: float | None = None
    cosine_before: float | None = None
    cosine_after: float | None = None
    logit_change: float | None = None
    predicted: Mapping[str, float] = field(default_factory=dict)
    breakdown: Breakdown | None = None
    escalation: float | None = None
    escalation_bound: float | None = None
    rebuilt: float | None = None
    stack: str = ""

    @property
    def measured(self) -> float | None:
        """Measured change of t_sim over the layer."""
        if self.similarity_before is None or self.similarity_after is None:
            return None
        return self.similarity_after - self.similarity_before


@dataclass(frozen=True)
class Skill:
    """How well one prediction tells the changes of logit t_sim over the layers of a model.

    Attributes:
        name: A tier, "persistence" or "verdicts".
        knows: What it may know, in words.
        layers: How many were compared.
        explained: Share of the variance over layers that it explains, 1 − Σ(m − p)²/Σ(m − m̄)²: 0 for a prediction no
            better than the mean, below where it is worse. None where nothing varies; the verdicts tell only directions.
        accuracy: Share of layers whose direction it gets right.
        balanced_accuracy: Mean of the shares right among rises and among falls; None where all layers go one way.
    """

    name: str
    knows: str
    layers: int
    explained: float | None
    accuracy: float
    balanced_accuracy: float | None


@dataclass(frozen=True)
class Growth:
    """Growth over the real stack of layers, weights and attention changing from layer to layer.

    `mean_exponent` and `rest_exponent` are growth rates per layer (log) of the token mean and of what differs.
    """

    mean_exponent: float
    rest_exponent: float
    layers: int

    @property
    def margin(self) -> float:
        """Positive where the token mean outgrows the rest."""
        return self.mean_exponent - self.rest_exponent


@dataclass(frozen=True, repr=False)
class Explanation:
    """The result of `unsmooth.explain`.

    Of a model with several stacks (an encoder and a decoder, two towers) `stacks` has one for each, with its own depth,
    counted from 1; layers, heads and notes of the whole are those of all.

    Attributes:
        name: The model's name.
        layers: One finding per layer.
        heads: One finding per head, layer by layer.
        skills: How well each tier foretells the layers of this model, and persistence and the verdicts beside them;
            empty without data.
        growth: Growth over the whole stack; None without data.
        manifest: What was explained: model, weights, data, versions.
        notes: What a reader must know: what was left out, and why.
        sentence: The finding in one sentence.
        stack: Which of several stacks it is about; else nothing.
        stacks: One explanation for each stack that could be explained, where there are several.
    """

    name: str
    layers: tuple[LayerFinding, ...]
    heads: tuple[HeadFinding, ...]
    skills: tuple[Skill, ...] = ()
    growth: Growth | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sentence: str = ""
    stack: str = ""
    stacks: tuple[Explanation, ...] = ()

    @property
    def parts(self) -> tuple[Explanation, ...]:
        """One explanation for each stack: its own where there is one."""
        return self.stacks or (self,)

    def __repr__(self) -> str:
        head = (
            f"Explanation of {self.name!r}: {len(self.layers)} layers, {len(self.heads)} heads, {len(self.notes)} notes"
        )
        return "\n".join(filter(None, (head, self.sentence)))

    def to_frame(self, of: Literal["layers", "heads"] = "layers") -> pandas.DataFrame:
        """A tidy frame with one row per layer, or per head; also by `stack` where there are several."""
        import pandas

        if of == "heads":
            columns = [item.name for item in fields(HeadFinding) if item.name != "stack" or self.stacks]
            return pandas.DataFrame([asdict(one) for one in self.heads], columns=columns)
        if of != "layers":
            raise expected("'layers' or 'heads'", repr(of), "to_frame('heads')")
        return pandas.DataFrame([_flat(one) for one in self.layers]).drop(columns=[] if self.stacks else ["stack"])

    def save(self, folder: str | Path) -> Path:
        """Write explanation.json, layers.csv, heads.csv and manifest.json; each appears whole or not at all."""
        from unsmooth.explaining.files import save_explanation

        return save_explanation(self, Path(folder))


def _flat(one: LayerFinding) -> dict[str, Any]:
    """One row: nested findings become columns, the cloud stays out."""
    nested = {"eigenvalues", "gains", "breakdown", "predicted"}
    row = {item.name: getattr(one, item.name) for item in fields(one) if item.name not in nested}
    row["measured"] = one.measured
    for name in ("gains", "breakdown"):
        kind = Gains if name == "gains" else Breakdown
        part = getattr(one, name)
        row |= {f"{name}_{item.name}": getattr(part, item.name, None) for item in fields(kind)}
    return row | {f"predicted_{tier}": value for tier, value in one.predicted.items()}
