"""The models that come with the package, from finished runs of the study `steering`.

python -m benchmarks.demo_models --weights RUN FILE   one run as one file of float16 weights that says what it is
python -m benchmarks.demo_models --pack RUN OUT       the folder of a shipped model; RUN may be such a FILE
python -m benchmarks.demo_models --all RUNS           the three of seed 0 and the images, into the package; RUNS holds
                                                      plain/seed-0 … or plain.safetensors …
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

import unsmooth
from benchmarks.demo_card import card
from unsmooth.errors import UnsmoothError, expected
from unsmooth.evidence.records import Store, Trained, made
from unsmooth.files import finite, write_whole
from unsmooth.models import demo
from unsmooth.networks.config import ViTConfig
from unsmooth.networks.pixels import Pixels, load_pixels
from unsmooth.networks.saving import CONFIG_FILE, WEIGHTS_FILE, description, load_network, write_weights
from unsmooth.training import Config, RunFolder, TrainedRun, read_run
from unsmooth.training.data.cards import cifar_card
from unsmooth.training.data.images import read_cifar
from unsmooth.training.data.locate import find_images

STUDY, SEED = "steering", 0
FORMAT = 1
CARD_FILE = "README.md"
PLACES = (16, 49, 82)
RULE = (
    "CIFAR-100's test set: of each class's 100 images in the order of their bytes, the middle ones of its thirds "
    "(places 16, 49 and 82 from 0); the first one of every class, then the second, then the third; classes in the "
    "order 0, 37, 74, 11, … (37 k mod 100)"
)
_BATCH = 250


@dataclass(frozen=True)
class Shipped:
    """A trained model on its way into the package.

    Args:
        state: Weights in float16, remedies folded in.
        facts: What the manifest says, with the network's description and its pixels.
    """

    state: Mapping[str, Tensor]
    facts: dict[str, Any]


def from_run(run: Path, evidence: Path) -> Shipped:
    """Fold, round, and see what rounding does.

    Args:
        run: Folder of a finished run.
        evidence: Folder of results, whose record of this run says which commit trained it.
    """
    folder = RunFolder(run)
    if not folder.finished:
        raise expected("a finished run", f"{run}, which is {folder.manifest().get('state', 'none')}", "another folder")
    config, read = folder.config(), read_run(run)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = unsmooth.load(folder.final, dtype="float32", device=device)
    if unsmooth.remedies.applied(model):
        unsmooth.fold(model)
    pixels = load_pixels(folder.final)
    assert pixels is not None, "every run on images writes it"
    state = {name: tensor.detach().half().cpu().contiguous() for name, tensor in model.state_dict().items()}
    facts = {
        **_facts(read, config, _record(evidence, config), device),
        "parameters": sum(one.numel() for one in model.parameters()),
        "network": description(model),
        "pixels": {"image": pixels.image, "mean": pixels.mean, "std": pixels.std},
        "rounding": rounding(model, pixels, config, device),
    }
    return Shipped(state, json.loads(json.dumps(finite(facts))))


def _facts(run: TrainedRun, config: Config, record: Trained | None, device: torch.device) -> dict[str, Any]:
    now = made(device) if record is None else record.made
    curve = [row.mean for row in run.measurements[-1].scan.curve("mean_cosine")]
    return {
        "format": FORMAT,
        "name": _name(config),
        "study": STUDY,
        "recipe": config.recipe,
        "remedies": list(config.remedies),
        "seed": config.seed,
        "epochs": config.epochs,
        "steps": run.manifest["done"],
        "data": run.manifest["data"],
        "accuracy_of_run": run.evaluations[-1]["accuracy"],
        "similarity": {"metric": "mean_cosine", "layers": curve},
        "made": {
            **{key: now[key] for key in ("commit", "changed", "versions", "when")},
            "hardware": run.manifest["device"],
            "seconds": run.manifest["seconds"],
            "side_by_side": now.get("side_by_side"),
        },
        "config": {key: value for key, value in run.config.items() if key != "format"},
    }


def _name(config: Config) -> str:
    name = "+".join(config.remedies) or demo.NAMES[0]
    if name not in demo.NAMES:
        raise expected(f"a run with {' or '.join(demo.NAMES[1:])}, or with no remedy", name, "another run")
    return name


def _record(evidence: Path, config: Config) -> Trained | None:
    runs = Store(evidence).study(STUDY, "full")
    return next((run for run in runs if run.variant == _name(config) and run.seed == config.seed), None)


def rounding(model: nn.Module, pixels: Pixels, config: Config, device: torch.device) -> dict[str, Any]:
    """What weights of float16 do to logits and classes, computed in float32 both times."""
    images, labels = _tests(config)
    rounded = copy.deepcopy(model).half().float()
    full, half = (logits(one, images, pixels, device) for one in (model, rounded))
    classes, others = full.argmax(1), half.argmax(1)
    return {
        "images": len(labels),
        "largest_difference": float((full - half).abs().max()),
        "largest_logit": float(full.abs().max()),
        "classes_changed": int((classes != others).sum()),
        "accuracy_float32": float((classes == labels).double().mean()),
        "accuracy_float16": float((others == labels).double().mean()),
    }


def _tests(config: Config) -> tuple[Tensor, Tensor]:
    """The run's own test images; where they are not on this machine those that come with the package."""
    network, data = config.network, config.data
    assert isinstance(network, ViTConfig)
    try:
        found = find_images(
            data.name,
            data.path,
            classes=network.classes,
            size=network.image,
            train_limit=data.train_limit,
            test_limit=data.test_limit,
        )
    except UnsmoothError:
        return demo.images()
    return found.test_images, found.test_labels


@torch.no_grad()
def logits(model: nn.Module, images: Tensor, pixels: Pixels, device: torch.device | str = "cpu") -> Tensor:
    """(images, classes) on the CPU."""
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (pixels.mean, pixels.std))
    parts = [(part.float() / 255 - mean) / std for part in images.split(_BATCH)]
    return torch.cat([model(part.to(device)).float().cpu() for part in parts])


def write_file(shipped: Shipped, file: Path) -> Path:
    """One file with everything that `pack` needs."""
    said = {"format": "pt", "unsmooth": json.dumps(shipped.facts)}
    return write_whole(file, save(dict(shipped.state), said))


def read_file(file: Path) -> Shipped:
    """What `write_file` wrote."""
    with safe_open(file, "pt") as opened:
        said = opened.metadata() or {}
    if "unsmooth" not in said:
        raise expected("a file that --weights wrote", f"{file}, which does not say what it is", "another file")
    return Shipped(load_file(file), json.loads(said["unsmooth"]))


def pack(shipped: Shipped, out: Path) -> dict[str, Any]:
    """Write the folder of a shipped model, and return its manifest."""
    facts = dict(shipped.facts)
    network, said = facts.pop("network"), facts.pop("pixels")
    pixels = Pixels(said["image"], tuple(said["mean"]), tuple(said["std"]))
    write_whole(out / CONFIG_FILE, json.dumps(network, indent=2) + "\n")
    write_weights(shipped.state, out)
    pixels.save_pretrained(out)
    images, labels = demo.images()
    right = logits(load_network(out, torch.float32), images, pixels).argmax(1) == labels
    manifest = {
        **facts,
        "accuracy": facts["rounding"]["accuracy_float16"],
        "shipped_images": {"count": len(labels), "right": int(right.sum())},
        "sha256": hashlib.sha256((out / WEIGHTS_FILE).read_bytes()).hexdigest(),
    }
    write_whole(out / demo.MANIFEST_FILE, json.dumps(manifest, indent=1) + "\n")
    write_whole(out / CARD_FILE, card(manifest))
    return manifest


def choose(images: Tensor, labels: Tensor) -> Tensor:
    """Places of the shipped images, by `RULE`: the same ones whatever order the test set is in."""
    by_class = []
    for label in range(100):
        places = (labels == label).nonzero()[:, 0].tolist()
        places.sort(key=lambda place: images[place].numpy().tobytes())
        by_class.append([places[one] for one in PLACES])
    return torch.tensor([by_class[37 * k % 100][turn] for turn in range(len(PLACES)) for k in range(100)])


def write_images(data: Path, file: Path) -> Path:
    """The shipped images out of CIFAR-100's files."""
    found = read_cifar(data)
    chosen = choose(found.test_images, found.test_labels)
    tensors = {"images": found.test_images[chosen].contiguous(), "labels": found.test_labels[chosen].to(torch.uint8)}
    classes = cifar_card("cifar100").classes
    said = {"format": "pt", "rule": RULE, "source": "CIFAR-100 (Krizhevsky 2009)", "classes": json.dumps(classes)}
    return write_whole(file, save(tensors, said))


def pack_all(runs: Path, data: Path, evidence: Path) -> None:
    """The images, then the three models, into the package."""
    write_images(data, demo.HOME / demo.IMAGES_FILE)
    for name in demo.NAMES:
        file = runs / f"{name}.safetensors"
        shipped = _opened(file if file.is_file() else runs / name / f"seed-{SEED}", evidence)
        if shipped.facts["name"] != name:
            raise expected(f"the {name} model", f"the {shipped.facts['name']} one", "the runs of the study")
        _tell(pack(shipped, demo.folder(name)))


def _opened(run: Path, evidence: Path) -> Shipped:
    return read_file(run) if run.is_file() else from_run(run, evidence)


def _tell(facts: Mapping[str, Any]) -> None:
    shown = ("name", "accuracy_of_run", "rounding", "made", "accuracy", "shipped_images", "sha256")
    print(json.dumps({key: facts[key] for key in shown if key in facts}), flush=True)


def main(words: list[str] | None = None) -> None:
    """Do what was asked for."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--weights", nargs=2, type=Path, metavar=("RUN", "FILE"))
    asked.add_argument("--pack", nargs=2, type=Path, metavar=("RUN", "OUT"))
    asked.add_argument("--all", type=Path, metavar="RUNS")
    asked.add_argument("--images", action="store_true", help="the images alone, into the package")
    parser.add_argument("--data", type=Path, default=Path("data/cifar100"), help="CIFAR-100, for the images")
    parser.add_argument("--evidence", type=Path, default=Path("evidence"), help="results that tell of the runs")
    given = parser.parse_args(words)
    if given.weights:
        shipped = from_run(given.weights[0], given.evidence)
        write_file(shipped, given.weights[1])
        _tell(shipped.facts)
    elif given.pack:
        _tell(pack(_opened(given.pack[0], given.evidence), given.pack[1]))
    elif given.images:
        write_images(given.data, demo.HOME / demo.IMAGES_FILE)
    else:
        pack_all(given.all, given.data, given.evidence)


if __name__ == "__main__":
    main()
