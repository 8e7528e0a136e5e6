"""docs/explain: what the rules are worth on trained models, every number from the explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PARTS = ("attention_mean", "attention_rest", "mlp", "norm")


def page(results: Mapping[str, Any]) -> str:
    """The Markdown page."""
    models = results["models"]
    layers = [layer for model in models for layer in model["layers"]]
    rises = sum(layer["measured"] > 0 for layer in layers)
    return "\n".join(
        [
            "# What predicts whether a layer makes tokens alike",
            "",
            f"{len(models)} trained models, {len(layers)} layers: t_sim rises over {rises} of them and falls over "
            f"{len(layers) - rises}. All tokens count that are not padding. Made by `make explain-models`; numbers in "
            "`benchmarks/results/explain_models.json`.",
            "",
            "A rule never sees the layer's output. Beside its share of right directions stands what always guessing "
            "the commoner direction reaches, and the balanced accuracy: the mean of the shares right among rises and "
            "among falls, 0.50 for any constant guess.",
            "",
            *_scores(results["scores"]),
            "",
            "What each rule computes:",
            "",
            *(f"- **{name}**: {definition}." for name, definition in results["rules"].items()),
            "",
            "The last rule is an integral taken at few points: by the fundamental theorem of calculus "
            "f(X) = f(1x̄) + ∫J X̃, so it says how few Jacobians are enough, not that weights alone foretell a layer. "
            "Rules that see less are the ones above it.",
            "",
            "## By model",
            "",
            *_models(models, list(results["rules"])),
            "",
            "Held out are models at which nobody looked while the rules were made; two of them were fine-tuned from "
            "one that was looked at. `rebuilt` is the largest error of the attention branch rebuilt from extracted "
            "weights and captured maps, relative to its largest entry.",
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


def _scores(scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    groups = list(scores)
    heads = [f"{group}: right | balanced | rank corr." for group in groups]
    lines = [f"| rule | {' | '.join(heads)} |", "|---" * (1 + 3 * len(groups)) + "|"]
    for rule in scores["all"]:
        cells = [_cells(scores[group].get(rule)) for group in groups]
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    majority = [f"{_any(scores[group])['majority']:.2f} | 0.50 | –" for group in groups]
    counts = [f"{_any(scores[group])['layers']} layers | |" for group in groups]
    return [*lines, f"| *commoner direction* | {' | '.join(majority)} |", f"| *compared* | {' | '.join(counts)} |"]


def _any(found: Mapping[str, Any]) -> Any:
    return found["eigenvalue"]


def _cells(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "– | – | –"
    return " | ".join(_number(found[name]) for name in ("accuracy", "balanced_accuracy", "rank_correlation"))


def _models(models: Sequence[Mapping[str, Any]], rules: Sequence[str]) -> list[str]:
    lines = [
        f"| model | layers | falls | {' | '.join(rules)} | rebuilt |",
        "|---" * (4 + len(rules)) + "|",
    ]
    for model in models:
        layers = model["layers"]
        falls = sum(layer["measured"] <= 0 for layer in layers)
        right = [_number(model["scores"].get(rule, {}).get("accuracy")) for rule in rules]
        name = model["name"] if model["looked_at"] else f"{model['name']} (held out)"
        cells = [name, str(len(layers)), str(falls), *right, f"{model['rebuilding_error']:.0e}"]
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


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
