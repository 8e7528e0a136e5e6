"""docs/training/README.md from benchmarks/results: what a step costs, what is exact, what the reference runs reached.

python -m benchmarks.training_page [--runs runs/reference]     # with the runs at hand their figures are redrawn too
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from unsmooth.files import write_whole

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs" / "training"
FIGURES = {
    "cifar100": ("accuracy", "similarity"),
    "cram_bert": ("loss", "similarity"),
    "xl_wt103": ("loss", "similarity"),
}


def read(name: str) -> Any:
    """A benchmark's numbers; None where it was not run."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def table(head: list[str], rows: list[list[str]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def step_cost() -> str:
    """Milliseconds a step."""
    found = read("train_step_gpu")
    if found is None:
        return ""
    beside = {one["patch"]: one for one in found.get("side_by_side", ())}
    rows = [
        [
            f"{one['patch']} ({one['tokens']} tokens)",
            f"**{one['ours']['median']:.2f}** ({one['bar']['milliseconds']})",
            f"{one['without_augmentation']['median']:.2f}",
            f"{beside[one['patch']]['median']:.2f}" if one["patch"] in beside else "–",
            f"{one['timm']['median']:.1f}",
            f"**{one['over_timm']:.1f}x** ({one['bar']['over_timm']})",
            f"{100 * one['input_and_measurement_share']:.1f} %",
            f"{one['minutes_for_300_epochs']:.1f}",
        ]
        for one in found["patches"]
    ]
    head = [
        "patch",
        "whole step (bar)",
        "no augmentation",
        f"each of {next(iter(beside.values()))['runs'] if beside else 4}",
    ]
    head += ["timm", "timm / ours (bar)", "input + measuring", "300 epochs, minutes"]
    return f"""## What a step costs

ViT-Ti on 32x32 images, batch {found["batch"]}, bfloat16, one {found["device"]}, torch {found["torch"]}, milliseconds.
The whole step — gather, RandAugment, mixup, cutmix, crop, flip, forward, backward, clip, AdamW, schedule — is one CUDA
graph. timm's own ViT-Ti in a loop as timm's has mixed precision, Mixup, AdamW, clipping and a look at the loss each
step, on images that are on the GPU already and are not augmented. One run, {_json("train_step_gpu")}, by
`python -m benchmarks.train_step`.

{table(head, rows)}
"""


def exactness() -> str:
    """Augmentation, resuming, processes."""
    parts = [part for part in (_augmentation(), _kills(), _agreement()) if part]
    return "## What is exact\n\n" + "\n".join(parts) + "\n" if parts else ""


def _augmentation() -> str:
    if (found := read("augment_exactness")) is None:
        return ""
    operations, count = found["operations"], f"{found['images']['count']:,}"
    settings = sum(len(one["settings"]) for one in operations.values())
    return (
        f"- **Augmentation is Pillow's.** {len(operations)} operations of RandAugment in {settings} settings on "
        f"{count} images beside Pillow {found['machine']['pillow']}: largest difference {found['greatest']} grey "
        f"levels, interpolated ones included (`make bench-augment`, {_json('augment_exactness')})."
    )


def _kills() -> str:
    if (found := read("kill_and_resume")) is None:
        return ""
    hits = ", ".join(f"{count} {where}" for where, count in found["hits"].items())
    outcome = "identical to the bit" if found["identical"] else "NOT identical"
    return (
        f"- **A killed run goes on to the bit.** {found['kills']} kills by SIGKILL over {len(found['runs'])} runs "
        f"({hits}): final weights and logs {outcome} to those of runs that were let be, "
        f"{found['unreadable_checkpoints']} unreadable checkpoints (`make kills`, {_json('kill_and_resume')})."
    )


def _agreement() -> str:
    if (found := read("process_agreement")) is None:
        return ""
    rows = [
        [one["way"], one["task"], f"{one['float32_loss']:.1e}", f"{one['float64_weights']:.1e}"]
        for one in found["runs"]
    ]
    targets = found["targets"]
    head = ["way", "task", f"loss, float32 (bar {targets['float32_loss']:g})"]
    head.append(f"weights, float64 (bar {targets['float64_weights']:g})")
    return (
        f"- **Two processes give what one gives**, after {found['steps']} steps with the same global batch (gloo, "
        f"`make agreement`, {_json('process_agreement')}); largest differences:\n\n{table(head, rows)}"
    )


def _json(name: str) -> str:
    return f"[json](../../benchmarks/results/{name}.json)"


def tiny() -> str:
    """Recipes at their smallest."""
    found = read("tiny_recipes")
    if found is None:
        return ""
    rows = []
    for name, one in found["recipes"].items():
        if "refused" in one:
            rows.append([name, "–", "needs `unsmooth data get superglue`", ""])
            continue
        baseline = f"{one['last']['unigram_loss']:.2f} (token counts)" if "unigram_loss" in one["last"] else "–"
        loss = f"{one['first']['loss']:.2f} → {one['last']['loss']:.2f}"
        rows.append([name, f"{one['seconds']:.0f}", loss, baseline])
    head = ["recipe", "seconds", "evaluation loss, first → last", "loss without learning"]
    return f"""## At `--size tiny`

The whole command on {found["machine"]["cores"]} CPU cores, without data, so on made-up images and text
({_json("tiny_recipes")}, `make tiny-recipes`).

{table(head, rows)}
"""


def runs() -> str:
    """The reference runs."""
    found = read("training_runs")
    if found is None:
        return ""
    rows = []
    for name, run in found.items():
        last, manifest = run["last"], run["manifest"]
        numbers = {key.partition("/")[2]: value for key, value in last.items() if key.startswith("evaluation/")}
        told = ", ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in numbers.items())
        alike = run["mean_cosine"]
        change = f"{alike[0]['layers'][-1]:.2f} → {alike[-1]['layers'][-1]:.2f}" if alike else "–"
        size = f"{manifest['parameters'] / 1e6:.1f} M"
        rows.append([name, size, f"{manifest['steps']:,}", f"{manifest['seconds']:.0f}", told, change])
    head = ["run", "parameters", "steps", "seconds", "last evaluation", "mean cosine at the last layer, start → end"]
    pictures = "\n".join(
        f"![{name}: {figure}]({name}_{figure}.svg)"
        for name, wanted in FIGURES.items()
        for figure in wanted
        if (DOCS / f"{name}_{figure}.svg").exists()
    )
    return f"""## Reference runs

One seed each, on one H200, at sizes that take minutes: these show that the recipes learn, not what the papers' sizes
reach. `python -m benchmarks.reference_runs` repeats them; all numbers:
[json](../../benchmarks/results/training_runs.json).

{table(head, rows)}

{pictures}
"""


def draw(folder: Path) -> None:
    """Redraw the figures from run folders."""
    from unsmooth.report.training import figure
    from unsmooth.training import read_run

    for name, wanted in FIGURES.items():
        if (folder / name).exists():
            for one in wanted:
                figure(read_run(folder / name), one).save(str(DOCS / f"{name}_{one}.svg"))


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path)
    wish = parser.parse_args()
    DOCS.mkdir(parents=True, exist_ok=True)
    if wish.runs is not None:
        draw(wish.runs)
    head = """# Training: what it costs, what is exact, what was run

Written by `python -m benchmarks.training_page` from [`benchmarks/results`](../../benchmarks/results). How to train, and
what a run's folder holds: [guide](guide.md).
"""
    parts = [head, step_cost(), exactness(), tiny(), runs()]
    write_whole(DOCS / "README.md", "\n".join(part for part in parts if part))


if __name__ == "__main__":
    main()
