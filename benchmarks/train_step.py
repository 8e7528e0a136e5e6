"""What a training step of `vit_cifar100` costs on a GPU, beside timm's own ViT-Ti in a loop as timm's: one run, ratios.

Ours is the whole step (gather, augmentation, forward and backward in bfloat16, clipping, AdamW, schedule) as one CUDA
graph. timm's loop has automatic mixed precision, Mixup, AdamW, clipping and a look at the loss every step; its images
are already on the GPU and not augmented, so that what it spends on Pillow in real life does not count against it.

PYTHONPATH=src python -m benchmarks.train_step --out benchmarks/results/train_step_gpu.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from unsmooth.files import write_whole
from unsmooth.training import RunFolder, recipe
from unsmooth.training.place import Place
from unsmooth.training.plain import override
from unsmooth.training.run import Run

BATCH, CLASSES, STEPS_PER_EPOCH = 96, 100, 520
BARS = {2: {"milliseconds": 9.0, "over_timm": 3.3}, 4: {"milliseconds": 3.5, "over_timm": 8.0}}
PLAIN = {"rand": "", "mixup": 0.0, "cutmix": 0.0, "crop_pad": 0, "flip": 0.0}


def our_run(patch: int, folder: Path, **changes: Any) -> Run:
    """A captured run on synthetic images of CIFAR's size."""
    config = override(recipe("vit_cifar100"), {"data.name": "synthetic", "patch": patch, **changes})
    place = RunFolder(folder)
    place.create(config)
    return Run(config, place, Place(torch.device("cuda")))


def timed(step: Callable[[], Any], rounds: int = 7, steps: int = 40) -> dict[str, float]:
    """Milliseconds a step: the median of some rounds, and the fastest."""
    for _ in range(10):
        step()
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start) / steps * 1e3)
    return {"median": statistics.median(found), "fastest": min(found)}


def timm_step(patch: int, compiled: bool) -> Callable[[], float]:
    """A step of timm's ViT-Ti with timm's Mixup, written as timm's training script has it."""
    import timm
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=patch, num_classes=CLASSES, drop_path_rate=0.1, qkv_bias=False
    ).cuda()
    runner = torch.compile(model) if compiled else model
    mixup = Mixup(mixup_alpha=1.0, cutmix_alpha=0.8, label_smoothing=0.1, num_classes=CLASSES)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1.25e-4, weight_decay=0.05)
    scaler, loss_of = torch.amp.GradScaler("cuda"), SoftTargetCrossEntropy()
    images = torch.randn(BATCH, 3, 32, 32, device="cuda")
    labels = torch.randint(0, CLASSES, (BATCH,), device="cuda")

    def step() -> float:
        mixed, targets = mixup(images.clone(), labels)
        with torch.autocast("cuda"):
            loss = loss_of(runner(mixed), targets)
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimiser)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimiser)
        scaler.update()
        return float(loss.item())

    return step


def side_by_side(patch: int, folder: Path, count: int) -> dict[str, float]:
    """Milliseconds for one step of each of several runs that share the GPU, divided by their number."""
    runs = [our_run(patch, folder / f"side-{patch}-{index}", seed=index) for index in range(count)]

    def step() -> None:
        for run in runs:
            assert run.replay is not None
            run.replay.accumulate()

    return {name: value / count for name, value in timed(step, rounds=5, steps=20).items()}


def measured_share(run: Run, step_milliseconds: float) -> dict[str, float]:
    """What the recipe's measurements take, over its steps: 300 epochs, a scan at the start, after 1, 2, 5, 10, 20 …."""
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run.step = 0  # a moment at which a measurement is due
        run._measure_if_due()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return spread_over_run(statistics.median(times[1:]), len(run.table.measurements), step_milliseconds)


def spread_over_run(seconds: float, count: int, step_milliseconds: float) -> dict[str, float]:
    """So many measurements in 300 epochs of CIFAR-100; the synthetic images here are fewer."""
    whole = 300 * STEPS_PER_EPOCH * step_milliseconds / 1e3
    return {"seconds_each": seconds, "how_many": count, "share_of_run": count * seconds / whole}


def measure(patch: int, folder: Path) -> dict[str, Any]:
    """All figures of one patch size."""
    start = time.perf_counter()
    full = our_run(patch, folder / f"full-{patch}")
    built = time.perf_counter() - start
    assert full.replay is not None
    ours = timed(full.replay.accumulate)
    measuring = measured_share(full, ours["median"])
    plain = our_run(patch, folder / f"plain-{patch}", **PLAIN)
    assert plain.replay is not None
    bare = timed(plain.replay.accumulate)
    again = timed(full.replay.accumulate)
    theirs = timed(timm_step(patch, compiled=False), rounds=5, steps=20)
    found = {
        "patch": patch,
        "tokens": (32 // patch) ** 2 + 1,
        "ours": ours,
        "ours_again": again,
        "without_augmentation": bare,
        "timm": theirs,
        "over_timm": theirs["median"] / ours["median"],
        "augmentation_share": 1 - bare["median"] / statistics.median([ours["median"], again["median"]]),
        "measuring": measuring,
        "minutes_for_300_epochs": ours["median"] * 300 * STEPS_PER_EPOCH / 6e4,
        "seconds_to_build_and_capture": built,
        "bar": BARS[patch],
    }
    found["input_and_measurement_share"] = found["augmentation_share"] + measuring["share_of_run"]
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "train_step_gpu.json")
    parser.add_argument("--patches", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--side-by-side", type=int, default=4)
    wish = parser.parse_args()
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "batch": BATCH,
        "patches": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for patch in wish.patches:
            found["patches"].append(measure(patch, Path(folder)))
            print(json.dumps(found["patches"][-1], indent=1), flush=True)
            write_whole(wish.out, json.dumps(found, indent=1) + "\n")
        for patch in wish.patches if wish.side_by_side else []:
            together = side_by_side(patch, Path(folder), wish.side_by_side)
            found.setdefault("side_by_side", []).append({"patch": patch, "runs": wish.side_by_side, **together})
            print(found["side_by_side"][-1], flush=True)
            write_whole(wish.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
