"""docs/explain: what a tier of knowledge is worth on trained models, every number from the explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.trained_models.skill import BASELINES
from unsmooth.explaining import Skill
from unsmooth.explaining.score import PERSISTENCE, VERDICTS, best_tier

PARTS = ("attention_mean", "attention_rest", "mlp", "norm")
GROUPS = {
    "public": "Lineages that others trained",
    "held out": "Of these, lineages whose layers nobody had looked at while the tiers were made",
    "ours": "Models trained here, with the slopes of the public lineages",
}


def page(results: Mapping[str, Any]) -> str:
    """The Markdown page."""
    models = results["models"]
    public = [model for model in models if not model["ours"]]
    layers = [layer for model in public for layer in model["layers"]]
    rises = sum(layer["logit_change"] > 0 for layer in layers)
    return "\n".join(
        [
            "# How much one must know to foretell what a layer does to tokens",
            "",
            f"{len(public)} trained models of {len(results['skills']['public']['lineages'])} lineages, {len(layers)} "
            f"layers: logit t_sim rises over {rises} of them and falls over {len(layers) - rises}; beside them "
            f"{len(models) - len(public)} models trained here. All tokens count that are not padding. Made by `make "
            "explain-models`; numbers in `benchmarks/results/explain_models.json`.",
            "",
            "What is foretold is the change of logit t_sim = log(‖ΠX‖²/‖(I − Π)X‖²) over each layer. A tier draws "
            "tokens that have the statistics it knows and no other, and lets the block act on them:",
            "",
            *(f"- **{name}** knows {knows}." for name, knows in results["tiers"].items()),
            "",
            "Statistics are the scales of the tokens, and mean and covariance of the tokens less their scale. Where "
            "maps are not known, attention is what the block's own queries and keys make of the drawn tokens. T4 is "
            "the ceiling and a check of the wiring, not a prediction. *Persistence* says of each layer what the layer "
            "before did, *depth alone* what a layer at that depth does in other lineages.",
            "",
            "Two choices were made by looking at four of the lineages and at the models trained here: attention from "
            "the block's own queries and keys rather than uniform, and drawn tokens that are carried from layer to "
            "layer, and there given the statistics that are known, rather than drawn anew. The other lineages are the "
            "test of both.",
            "",
            "Share explained: 1 − Σ(m − p)²/Σ(m − m̄)² over the layers of a lineage, m̄ the mean of the model's own "
            "layers, p with the slope and the offset that the *other* lineages gave; persistence is fitted likewise. "
            "Balanced accuracy: mean of the shares right among rises and among falls, 0.5 for any constant guess, over "
            "lineages that have both; a tier tells the direction itself, without slope and offset. Each number is a "
            "mean over lineages with Student's 95 % interval; a gain is a mean of differences, lineage by lineage.",
            "",
            *(line for group, title in GROUPS.items() for line in _group(title, results["skills"][group])),
            "## By lineage",
            "",
            "Share explained / balanced accuracy (accuracy where layers all go one way, in brackets).",
            "",
            *_lineages(results["skills"]),
            "",
            "## By model",
            "",
            "As `unsmooth explain` tells it, without slope and offset of other models: which tier leads, the share of "
            "the variance that it explains, and the share of directions that it, persistence and verdicts get right.",
            "",
            *_models(models),
            "",
            "`rebuilt` is the largest error of the attention branch rebuilt from extracted weights and captured maps, "
            "relative to its largest entry.",
            "",
            "## What the change is made of",
            "",
            "Mean over layers of the measured change of t_sim, and of its four parts, which sum to it layer by layer: "
            "the token mean of the attention branch, the rest of it, the MLP, and norms on the stream.",
            "",
            *_breakdowns(models),
            "",
        ]
    )


def _group(title: str, group: Mapping[str, Any]) -> list[str]:
    lines = [f"## {title} ({len(group['lineages'])})", ""]
    heads = ["share explained", *(f"gain over {baseline}" for baseline in BASELINES)]
    heads += ["balanced accuracy", *(f"gain over {baseline}" for baseline in BASELINES)]
    lines += [f"| | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for name, skill in group["skills"].items():
        cells = []
        for score in ("explained", "balanced_accuracy"):
            cells.append(_interval(skill.get(score)))
            for baseline in BASELINES:
                gain = skill.get(f"{score}, gain over {baseline}")
                cells.append("–" if name in BASELINES else _interval(gain, signed=True))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    counted = group["skills"]["T1"].get("balanced_accuracy")
    return [*lines, "", f"Balanced accuracies are of {counted['count'] if counted else 0} lineages.", ""]


def _lineages(skills: Mapping[str, Any]) -> list[str]:
    names = list(skills["public"]["skills"])
    lines = [f"| lineage | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for group in ("public", "ours"):
        for lineage in skills[group]["lineages"]:
            found = [skills[group]["skills"][name]["by_lineage"][lineage] for name in names]
            lines.append(f"| {lineage} | {' | '.join(map(_both, found))} |")
    return lines


def _both(scores: Mapping[str, float | None]) -> str:
    balanced = scores["balanced_accuracy"]
    right = f"({_number(scores['accuracy'])})" if balanced is None else _number(balanced)
    return f"{_number(scores['explained'])} / {right}"


def _models(models: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| model | layers | falls | leads | explains | directions | persistence | verdicts | rebuilt |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for model in models:
        skills = {name: Skill(**one) for name, one in model["skills"].items()}
        best = best_tier(list(skills.values()))
        layers, verdicts = model["layers"], skills.get(VERDICTS)
        cells = [
            model["name"],
            str(len(layers)),
            str(sum(layer["logit_change"] <= 0 for layer in layers)),
            "none" if best is None else best.name,
            _number(best and best.explained),
            _number(best and best.accuracy),
            _number(skills[PERSISTENCE].accuracy),
            _number(verdicts and verdicts.accuracy),
            f"{model['rebuilding_error']:.0e}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _breakdowns(models: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| model | change a layer | attention's mean | attention's rest | MLP | norm | largest gap |",
        "|---|---|---|---|---|---|---|",
    ]
    for model in models:
        layers = [layer for layer in model["layers"] if layer["breakdown"]]
        if not layers:
            continue
        means = [sum(layer["breakdown"][part] for layer in layers) / len(layers) for part in PARTS]
        change = sum(layer["measured"] for layer in layers) / len(layers)
        gap = max(abs(sum(layer["breakdown"].values()) - layer["measured"]) for layer in layers)
        cells = [f"{value:+.4f}" for value in (change, *means)]
        lines.append(f"| {model['name']} | {' | '.join(cells)} | {gap:.0e} |")
    return lines


def _interval(found: Mapping[str, Any] | None, signed: bool = False) -> str:
    if found is None:
        return "–"
    value = f"{found['value']:{'+' if signed else ''}.2f}"
    return value if found["low"] is None else f"{value} [{found['low']:.2f}, {found['high']:.2f}]"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
