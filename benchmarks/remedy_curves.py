"""What each remedy does to the similarity curve, on random deep stacks and on trained models: one figure.

python -m benchmarks.remedy_curves    # -> docs/remedies/curves.svg, benchmarks/results/remedy_curves.json
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unsmooth
from benchmarks.trained_models.measure import load
from benchmarks.trained_models.models import MODELS
from unsmooth.files import write_whole
from unsmooth.report.charts import FAINT, INK, chart_config, chart_svg

ROOT = Path(__file__).parents[1]
RESULT, FIGURE = ROOT / "benchmarks" / "results" / "remedy_curves.json", ROOT / "docs" / "remedies" / "curves"
METRIC = "mean_cosine"
TRAINED = ("all-MiniLM-L6-v2", "SmolLM2-135M-Instruct", "RXNMapper-ALBERT")

# Strengths at which a remedy that starts neutral, and would be trained from there, can be seen.
FAMILIES: Mapping[str, Mapping[str, tuple[str, dict[str, Any]]]] = {
    "P1: the spectrum of H": {
        "sharpen": ("sharpen", {}),
        "sharpen, orthogonal": ("sharpen", {"basis": "orthogonal"}),
        "smooth": ("smooth", {}),
        "smooth, orthogonal": ("smooth", {"basis": "orthogonal"}),
    },
    "P2: the token mean": {
        "deescalate τ=1, attention": ("deescalate", {}),
        "deescalate τ=1, residual": ("deescalate", {"place": "residual"}),
        "deescalate τ=1, norm": ("deescalate", {"place": "norm"}),
        "deescalate τ=1, values": ("deescalate", {"place": "values"}),
    },
    "attention and features": {
        "attnscale ω=0.5": ("attnscale", {"omega": 0.5}),
        "featscale t=0.5": ("featscale", {"hc": 0.5}),
        "neutreno λ=0.6": ("neutreno", {}),
        "contranorm s=0.2": ("contranorm", {"scale": 0.2}),
    },
    "attention's map": {
        "centred τ=1": ("centred", {}),
        "gfsa w_K=-0.5": ("gfsa", {"start": -0.5}),
        "shaped α=β=γ=1": ("shaped", {}),
        "laplacian, half of the heads": ("laplacian", {}),
    },
    "values and tokens": {
        "value_residual": ("value_residual", {}),
        "value_skipinit β=0.5": ("value_skipinit", {"alpha": 0.5, "beta": 0.5}),
        "pairnorm s=1": ("pairnorm", {"scale": 1.0}),
        "softdecay α=-0.2": ("softdecay", {}),
    },
    "residual wiring": {
        "deepnorm": ("deepnorm", {"init": "keep"}),
        "b2t": ("b2t", {}),
        "rezero α=0.2, norms kept": ("rezero", {"start": 0.2, "norm": "keep"}),
        "residual_scaling 1/√L": ("residual_scaling", {}),
    },
    "norms and layers": {
        "layerscale γ=0.1": ("layerscale", {"start": 0.1}),
        "layernorm_scaling 1/√ℓ": ("layernorm_scaling", {}),
        "peri_norm": ("peri_norm", {}),
        "dlcl": ("dlcl", {}),
    },
    "weights": {
        "sigma_reparam γ=1": ("sigma_reparam", {}),
        "mimetic": ("mimetic", {}),
        "norm_signs, flipped": ("norm_signs", {}),
    },
}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
# Of the plain model, and of as many remedies as there are colours: a line stays to be seen below one that is the same.
WIDTHS = (1.6, 4.0, 3.0, 2.2, 1.4)


@dataclass(frozen=True)
class Subject:
    """A model, what it reads, and the metric's curve of it."""

    name: str
    make: Callable[[], nn.Module]
    data: Callable[[], Any]
    seeds: int = 1


def random_stack(norm_first: bool) -> Callable[[], nn.Module]:
    """24 layers of torch's encoder with its own (Xavier) start."""

    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(192, 3, 768, 0.0, batch_first=True, norm_first=norm_first)
        stack = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)
        # torch copies one layer 24 times: a stack of equal layers is not a random stack.
        for parameter in stack.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        return stack.eval()

    return make


def subjects(weights: Path, wheels: Path | None) -> Iterator[Subject]:
    """Two random stacks and three trained models."""

    def noise() -> list[torch.Tensor]:
        return [torch.randn(8, 64, 192, generator=torch.Generator().manual_seed(1))]

    yield Subject("random, post-norm, 24 layers", random_stack(False), noise, seeds=3)
    yield Subject("random, pre-norm, 24 layers", random_stack(True), noise, seeds=3)
    by_name = {model.name: model for model in MODELS}
    for name in TRAINED:
        model = by_name[name]
        yield Subject(name, lambda model=model: load(model, weights, wheels), model.texts)  # type: ignore[misc]


def curve(model: nn.Module, data: Any) -> list[float]:
    """The metric at layer 0, 1, … of the residual stream."""
    found = unsmooth.scan(model, data, metrics=[METRIC], progress=False, batch_size=4, max_batches=4, max_length=128)
    return [row.mean for row in found.curve(METRIC)]


def measure(subject: Subject) -> list[dict[str, Any]]:
    """A curve per remedy, the plain one first; means over seeds where the weights are random."""
    by_label: dict[tuple[str, str], list[list[float]]] = {}
    refused: dict[tuple[str, str], str] = {}
    for seed in range(subject.seeds):
        torch.manual_seed(seed)
        plain, data = subject.make(), subject.data()
        by_label.setdefault(("", "plain"), []).append(curve(plain, data))
        for family, remedies in FAMILIES.items():
            for label, (name, options) in remedies.items():
                curves = by_label.setdefault((family, label), [])
                torch.manual_seed(seed)  # some draw weights
                try:
                    model = unsmooth.apply(copy.deepcopy(plain), name, **options)
                except unsmooth.UnsmoothError as error:
                    refused[family, label] = str(error)
                    continue
                curves.append(curve(model, data))
                print(f"{subject.name}: {label}: {curves[-1][-1]:.3f}", flush=True)
    rows: list[dict[str, Any]] = []
    for (family, label), curves in by_label.items():
        row = {"model": subject.name, "family": family, "remedy": label}
        if curves:
            means = torch.tensor(curves, dtype=torch.float64).mean(0).tolist()
            rows.append({**row, "seeds": len(curves), "curve": means})
        else:
            rows.append({**row, "refused": refused[family, label]})
    return rows


def draw(rows: list[dict[str, Any]], stem: Path) -> None:
    """Families as rows, models as columns; the plain model in every panel."""
    import altair as alt

    models = list(dict.fromkeys(row["model"] for row in rows))
    plain = {row["model"]: row["curve"] for row in rows if row["remedy"] == "plain"}
    lines = []
    for family, remedies in FAMILIES.items():
        labels = ["plain", *remedies]
        panels = []
        for model in models:
            curves = {row["remedy"]: row["curve"] for row in rows if row["model"] == model and row.get("curve")}
            curves = {label: curves[label] for label in labels if label in curves} | {"plain": plain[model]}
            values = [
                {"layer": layer, "value": value, "remedy": label, "width": WIDTHS[labels.index(label)]}
                for label, points in curves.items()
                for layer, value in enumerate(points)
            ]
            legend = alt.Legend(title=family, orient="right", labelLimit=220, symbolType="stroke", symbolStrokeWidth=2)
            colour = alt.Color("remedy:N", legend=legend).scale(domain=labels, range=[INK, *COLOURS][: len(labels)])
            panels.append(
                alt.Chart(alt.Data(values=values))
                .mark_line()
                .encode(
                    x=alt.X("layer:Q", title="layer" if family == list(FAMILIES)[-1] else None).axis(format="d"),
                    y=alt.Y("value:Q", title="mean cosine" if model == models[0] else None).scale(domain=[-0.1, 1.0]),
                    color=colour,
                    strokeWidth=alt.StrokeWidth("width:O", legend=None).scale(None),
                    strokeDash=alt.condition(alt.datum.remedy == "plain", alt.value([5, 3]), alt.value([1, 0])),
                )
                .properties(width=170, height=130, title=model if family == next(iter(FAMILIES)) else "")
            )
        lines.append(alt.hconcat(*panels).resolve_scale(color="shared"))
    config = chart_config(INK, FAINT, "white")
    config["title"] |= {"fontSize": 12, "offset": 4}
    chart = alt.vconcat(*lines).resolve_scale(color="independent").configure(**config)
    write_whole(stem.with_suffix(".svg"), chart_svg(chart).encode())


def main() -> None:
    """Measure and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, default=ROOT / "weights", help="Where trained models are kept.")
    parser.add_argument("--wheels", type=Path, help="Take packages from this folder instead of an index.")
    parser.add_argument("--only", help="Models whose name contains this, without writing anything.")
    parser.add_argument("--redraw", action="store_true", help="Draw what was measured last.")
    arguments = parser.parse_args()
    if arguments.redraw:
        draw(json.loads(RESULT.read_text())["rows"], FIGURE)
        return
    rows = [
        row
        for subject in subjects(arguments.weights, arguments.wheels)
        if arguments.only is None or arguments.only in subject.name
        for row in measure(subject)
    ]
    if arguments.only is not None:
        return
    found = {"what": f"{METRIC} of the residual stream by layer, each remedy applied without training.", "rows": rows}
    write_whole(RESULT, json.dumps(found, indent=1) + "\n")
    draw(rows, FIGURE)


if __name__ == "__main__":
    main()
