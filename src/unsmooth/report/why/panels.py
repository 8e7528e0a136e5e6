"""Which pictures an explanation gives, with their tables and their captions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unsmooth.report.series import number
from unsmooth.report.why import draw, rows
from unsmooth.report.why.words import (
    CLOUD_READING,
    breakdown_caption,
    cloud_caption,
    prediction_caption,
    verdicts_caption,
)

if TYPE_CHECKING:
    import altair

    from unsmooth.explaining.result import Explanation, LayerFinding

QUANTITIES = {
    "second_eigenvalue": (
        "|λ₂| of attention",
        "The largest modulus of an eigenvalue of attention besides 1: small means that repeated attention averages "
        "fast. The dashed lines are what one in twenty random maps of the same size and entropy exceeds: "
        "Dirichlet rows, and softmaxes of random logits. A head above both has structure beyond its entropy.",
    ),
    "quotient_norm": (
        "‖(I − Π) A (I − Π)‖₂",
        "The most that one step of attention can grow what differs between tokens. |λ₂| tells of many steps, this of "
        "one: it may exceed 1 while |λ₂| is small.",
    ),
    "dobrushin": (
        "Dobrushin coefficient",
        "Half the largest 1-norm distance of two rows of attention: 0 where all tokens look at the same, "
        "1 where two look at nothing in common.",
    ),
    "entropy": (
        "row entropy / its maximum",
        "Mean entropy of the rows over the largest there could be: 1 is plain averaging, 0 looks at one token.",
    ),
}
NULLS = {
    "random_second_eigenvalue": "95 % of random maps: Dirichlet rows",
    "softmax_second_eigenvalue": "95 % of random maps: softmax of random logits",
}


@dataclass(frozen=True)
class Picture:
    """One picture of a figure; a figure with several lets its reader choose by `choice`.

    Attributes:
        title: What is drawn.
        choice: Its name among the panels of its figure; empty where it is alone.
        caption: What belongs to this one alone: its numbers, what it leaves out.
        tables: Rows by the name of the table; empty ones are left out.
        drawing: From tables, and `options` before them, to the chart.
        height: In pixels; None for a square.
        least: The width in pixels below which it cannot be read.
        key: What its files are named after, besides the figure.
        reading: How to read the pictures of its figure.
        options: What else the drawing is told.
    """

    title: str
    choice: str
    caption: str
    tables: Mapping[str, rows.Rows]
    drawing: Callable[..., altair.LayerChart]
    height: int | None = 320
    least: int = 0
    key: str = ""
    reading: str = ""
    options: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Limits:
    """How much of an explanation is drawn.

    Attributes:
        points: Of the cloud of each layer; None for all.
        words: Letters of the heads' reasons together, above which none is told; None for all.
        heads: Whether heads are drawn one by one beside their mean.
    """

    points: int | None = None
    words: int | None = None
    heads: bool = True


@dataclass(frozen=True)
class Figures:
    """The panels of an explanation by figure; a figure whose data is missing has none."""

    explanation: Explanation
    limits: Limits = field(default_factory=Limits)

    def panels(self) -> dict[str, list[Picture]]:
        """All of them; a figure that has no data is an empty list."""
        return {
            "eigenvalues": list(self._eigenvalues()),
            "verdicts": list(self._verdicts()),
            "prediction": list(self._prediction()),
            "breakdown": list(self._breakdown()),
            "attention": list(self._attention()),
            "gains": list(self._gains()),
            "escalation": list(self._escalation()),
        }

    def _eigenvalues(self) -> Iterable[Picture]:
        for one in self.explanation.layers:
            if rows.finite(one.eigenvalues):
                yield self._cloud(one)

    def _cloud(self, one: LayerFinding) -> Picture:
        values = rows.finite(one.eigenvalues)
        shown = rows.thinned(values, self.limits.points)
        cloud, averaging = rows.cloud_rows(shown), rows.disc_rows(0.0, draw.CIRCLES["averaging"][0])
        frame = rows.frame_rows(cloud + averaging)
        circles = {"averaging": averaging}
        heads = [head for head in self.explanation.heads if head.layer == one.layer]
        # A norm after the addition is no part of a head's own update, whose eigenvalues m comes from.
        found = rows.smallest_token_eigenvalue(heads) if one.place != "post" else None
        if found is not None:
            circles["smallest"] = rows.disc_rows(found[0], draw.CIRCLES["smallest"][0])
        if (growth := number(one.rest_modulus)) is not None:
            circles["measured"] = rows.circle_rows(-1.0, growth, draw.CIRCLES["measured"][0])
        tables = {"cloud": cloud, "top": rows.cloud_rows([rows.fastest(values)]), "frame": frame}
        tables |= {name: rows.clamped(circle, frame) for name, circle in circles.items()}
        return Picture(
            title=f"Eigenvalues of the value projection, layer {one.layer}",
            choice=f"layer {one.layer}",
            caption=cloud_caption(one, len(values), len(shown), found),
            tables=tables,
            drawing=draw.draw_cloud,
            height=None,
            key=f"layer {one.layer}",
            reading=CLOUD_READING,
        )

    def _verdicts(self) -> Iterable[Picture]:
        from unsmooth.explaining.words import verdicts_hold  # brings torch, which no import of the report waits for

        cells = rows.verdict_rows(self.explanation, self.limits.words)
        if cells and verdicts_hold(self.explanation.skills):
            lines = len({cell["row"] for cell in cells})
            columns = len({cell["layer"] for cell in cells})
            height = lines * (24 if lines <= 17 else 15)
            title = "Verdict of every layer and head"
            caption = verdicts_caption(self.explanation)
            yield Picture(title, "", caption, {"cells": cells}, draw.draw_verdicts, height, least=90 + 16 * columns)

    def _prediction(self) -> Iterable[Picture]:
        from unsmooth.explaining.score import able_tiers

        for one in able_tiers(self.explanation.skills):
            points = rows.prediction_rows(self.explanation.layers, one.name)
            if points:
                tables = {"points": points, "zero": [{"zero": 0}]}
                title, caption = f"Foretold and measured change: {one.name}", prediction_caption(one)
                yield Picture(title, one.name, caption, tables, draw.draw_prediction, 340, key=one.name)

    def _breakdown(self) -> Iterable[Picture]:
        shares = rows.breakdown_rows(self.explanation.layers)
        if shares:
            measured = rows.measured_rows(self.explanation.layers)
            tables = {"shares": shares} | ({"measured": measured} if measured else {})
            caption = breakdown_caption(self.explanation.layers)
            yield Picture("The change of t_sim by cause", "", caption, tables, draw.draw_breakdown, 300)

    def _attention(self) -> Iterable[Picture]:
        for quantity, (title, caption) in QUANTITIES.items():
            heads = rows.head_rows(self.explanation.heads, quantity)
            if heads:
                lines = rows.mean_rows(heads, "mean of the heads")
                if quantity == "second_eigenvalue":
                    for null, name in NULLS.items():
                        lines += rows.mean_rows(rows.head_rows(self.explanation.heads, null), name)
                tables = {"heads": heads, "lines": lines} if self.limits.heads else {"lines": lines}
                yield Picture(title, title, caption, tables, draw.draw_attention, 300, key=quantity, options=(title,))

    def _gains(self) -> Iterable[Picture]:
        gains = rows.gain_rows(self.explanation.layers)
        if gains:
            collapsed = rows.gain_rows(self.explanation.layers, "collapsed_")
            values = [row["gain"] for row in gains + collapsed]
            wide = min(values) > 0 and max(values) > 30 * min(values)
            caption = (
                "2-norms of the four parts of the block's Jacobian at real activations, split by the mean over tokens: "
                "what it does to the mean, to the rest, and what leaks from one into the other."
            )
            if collapsed:
                caption += (
                    " Diamonds: spectral radii at the point where all tokens equal their mean, where nothing leaks; "
                    "the larger one says whether tokens that are nearly alike stay so."
                )
            tables = {"gains": gains} | ({"collapsed": collapsed} if collapsed else {})
            title = "Gains of the block's Jacobian"
            yield Picture(title, "", caption, tables, draw.draw_gains, 300, options=(wide,))

    def _escalation(self) -> Iterable[Picture]:
        rates = rows.escalation_rows(self.explanation.layers)
        if rates:
            caption = (
                "Share of the remaining diversity that a layer takes away (P2, arXiv 2312.06182). The bound "
                "s(1 − |λ₂|²)/2, with s the t_sim that enters, is for random weights: trained ones may stay below it."
            )
            tables = {"rates": rates, "zero": [{"zero": 0}]}
            yield Picture("Escalation rate beside its bound", "", caption, tables, draw.draw_escalation, 280)
