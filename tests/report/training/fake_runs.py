"""Run folders made up by hand, with real scans of a tiny encoder in them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

import unsmooth
from unsmooth.scanning.result import Scan

STEPS_PER_EPOCH = 100
EPOCHS = 10
LAYERS = 4
METRICS = ("mean_cosine", "token_similarity", "effective_rank")


@cache
def real_scan() -> Scan:
    """A scan of an untrained encoder of PyTorch."""
    torch.manual_seed(7)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).eval()
    return unsmooth.scan(model, [torch.randn(2, 6, 16)], metrics=METRICS, progress=False)


def scan_at(progress: float, lift: float = 0.0) -> Scan:
    """The real scan with numbers as a training would leave them: more alike with depth and with time."""
    scan = real_scan()

    def trained(row: Any) -> Any:
        share = 0.08 + 0.62 * progress * (row.layer / LAYERS) ** 1.5 + lift * progress
        value = 5.5 - 4 * share if row.metric == "effective_rank" else share
        return replace(row, mean=value, ci_low=value - 0.02, ci_high=value + 0.02)

    return replace(scan, rows=tuple(map(trained, scan.rows)))


def loss_at(step: int, seed: int = 0, lift: float = 0.0) -> float:
    """A curve that falls, with noise that repeats."""
    noise = 0.4 * ((math.sin(step * 12.9898 + seed * 78.233) * 43758.5453) % 1 - 0.5)
    return 1.1 + 3.5 * math.exp(-step / 300) + lift + noise


def spectrum_at(progress: float, lift: float = 0.0) -> list[dict[str, Any]]:
    """Layers whose eigenvalues move to the left as training goes on."""
    layers = []
    for layer in range(1, LAYERS + 1):
        shift = -0.5 * progress * (layer / LAYERS) + lift
        quantiles = [round(shift + place, 4) for place in (-1.4, -0.9, -0.4, 0.0, 0.4, 0.9, 1.4)]
        layers.append(
            {
                "layer": layer,
                "asymmetry": 0.71 - 0.3 * progress * layer / LAYERS,
                "negative_share": 0.5 - 0.7 * shift,
                "spectral_radius": 1.4 + abs(shift),
                "norm": 1.9 + abs(shift),
                "quantiles": quantiles,
            }
        )
    return layers


def write_run(
    folder: Path,
    *,
    seed: int = 0,
    remedies: tuple[str, ...] = (),
    lift: float = 0.0,
    synthetic: bool = False,
    epochs: int = EPOCHS,
    log_every: int = 10,
    state: str = "finished",
    changes: dict[str, Any] | None = None,
) -> Path:
    """A whole run folder: settings, manifest, log, spectra and a scan every second epoch."""
    folder.mkdir(parents=True)
    settings = {"recipe": "vit_cifar", "size": "tiny", "seed": seed, "remedies": list(remedies), "epochs": epochs}
    settings |= {"data": {"name": "cifar100"}, "optimiser": {"lr": 1e-3}, **(changes or {})}
    data = {"name": "cifar100", "synthetic": synthetic, "digest": "ab12", "train": 50000, "test": 10000}
    manifest = settings | {"format": 1, "unsmooth": "0.1.0", "device": "NVIDIA H200", "data": data}
    manifest |= {"parameters": 5_392_132, "state": state, "steps": epochs * STEPS_PER_EPOCH, "seconds": 754.2 + seed}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "manifest.json").write_text(json.dumps(manifest))
    log, spectra = [], []
    for step in range(epochs * STEPS_PER_EPOCH + 1):
        epoch, progress = step / STEPS_PER_EPOCH, step / (epochs * STEPS_PER_EPOCH)
        if step and step % log_every == 0:
            log.append(
                {
                    "kind": "train",
                    "step": step,
                    "epoch": epoch,
                    "loss": loss_at(step, seed, lift),
                    "lr": 1e-3 * math.cos(progress * math.pi / 2),
                    "gradient_norm": 0.8 + 0.5 * math.exp(-step / 100) + 0.1 * math.sin(step * 3.7 + seed),
                    "samples_per_second": 12000 + 300 * math.sin(step),
                }
            )
        if step and step % STEPS_PER_EPOCH == 0:
            accuracy = 0.62 * (1 - math.exp(-3 * progress)) - 0.2 * lift + 0.004 * seed
            evaluation = {"kind": "evaluation", "step": step, "epoch": epoch, "loss": loss_at(step, seed, lift + 0.2)}
            log.append(evaluation | {"accuracy": accuracy, "top5_accuracy": min(1.0, accuracy + 0.25)})
        if step % (2 * STEPS_PER_EPOCH) == 0:
            place = f"scans/step-{step:08d}"
            (folder / place).mkdir(parents=True)
            scan_at(progress, 0.3 * lift + 0.01 * seed).save(folder / place)
            log.append({"kind": "measurement", "step": step, "epoch": epoch, "scan": place})
            spectra.append({"step": step, "epoch": epoch, "layers": spectrum_at(progress, 0.1 * lift)})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    (folder / "spectra.jsonl").write_text("".join(json.dumps(line) + "\n" for line in spectra))
    return folder
