"""Models to try things on: ViT-Ti trained here on CIFAR-100, plain, sharpened and smoothed; images for them.

They are a distribution of their own, unsmooth-demo, in the folder demo/ of this repository. Each model has a folder
with `network.json`, `model.safetensors` (float16, remedies folded into plain weights), `pixels.json`, `manifest.json`
and a card. The images are a few hundred of CIFAR-100's test set, stored once.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.files import parse_json, read_json
from unsmooth.models.origin import origin_of
from unsmooth.networks.pixels import Pixels, load_pixels
from unsmooth.networks.saving import WEIGHTS_FILE
from unsmooth.weights import load_tensors, read_header

PREFIX = "demo:"
NAMES = ("plain", "sharpen", "smooth")
IMAGES_FILE, MANIFEST_FILE = "images.safetensors", "manifest.json"
_FOUND = find_spec("unsmooth_demo")
HOME = Path(_FOUND.origin).parent if _FOUND is not None and _FOUND.origin else Path("unsmooth_demo")


def is_demo(name: str) -> bool:
    """Whether a name asks for one of these models.

    >>> is_demo("demo:plain"), is_demo("./demo")
    (True, False)
    """
    return name.startswith(PREFIX)


def folder(name: str) -> Path:
    """Where the files of a model are.

    >>> folder("demo:plain") == folder("plain")
    True

    Raises:
        UnsmoothError: There is no such model; whether its files are there is not looked at.
    """
    short = name.removeprefix(PREFIX)
    if short not in NAMES:
        raise unknown_name("demo model", name, [f"{PREFIX}{known}" for known in NAMES])
    return HOME / short


def built() -> bool:
    """Whether all models and the images are in this installation."""
    files = [HOME / IMAGES_FILE, *(HOME / name / file for name in NAMES for file in (WEIGHTS_FILE, MANIFEST_FILE))]
    return all(file.is_file() for file in files)


def manifest(name: str) -> dict[str, Any]:
    """What a model is, how it was trained, and how well it does."""
    path = folder(name) / MANIFEST_FILE
    try:
        return read_json(path)
    except FileNotFoundError:
        raise absent(f"demo:{path.parent.name}") from None


def note(name: str) -> str:
    """What a reader of its numbers should know, in one sentence."""
    facts = manifest(name)
    remedy = ", ".join(facts["remedies"]) or "no remedy"
    return (
        f"Trained here: ViT-Ti on CIFAR-100 with {remedy}, {facts['epochs']:g} epochs, seed {facts['seed']}; "
        f"{facts['accuracy']:.1%} of {facts['rounding']['images']:,} test images right."
    )


def images(count: int | None = None) -> tuple[Tensor, Tensor]:
    """Images (count, 3, 32, 32) as bytes, and their labels (count,).

    Args:
        count: The first so many, which are spread over the classes; None for all.
    """
    try:
        found = load_tensors(HOME / IMAGES_FILE)
    except FileNotFoundError:
        raise absent("the demo images") from None
    pictures, labels = found["images"], found["labels"].long()
    if count is not None and not 1 <= count <= len(labels):
        raise expected(f"between 1 and {len(labels)} demo images", count, f"images({len(labels)})")
    return pictures[:count], labels[:count]


def classes() -> tuple[str, ...]:
    """Names of the classes, by label."""
    try:
        return tuple(parse_json(read_header(HOME / IMAGES_FILE).metadata["classes"], IMAGES_FILE))
    except (FileNotFoundError, KeyError):
        raise absent("the demo images") from None


def shown(model: str | nn.Module, count: int | None = None) -> Tensor:
    """The images as a model sees them: (count, 3, 32, 32), normalised, in its dtype."""
    if isinstance(model, str):
        how, dtype = load_pixels(folder(model)), torch.float32
    else:
        origin = origin_of(model)
        how, dtype = getattr(origin, "image_processor", None), next(model.parameters()).dtype
    if not isinstance(how, Pixels):
        raise expected("a network that says how it sees images", "none that does", "demo:plain")
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (how.mean, how.std))
    return ((images(count)[0].float() / 255 - mean) / std).to(dtype)


def batches(model: str | nn.Module, count: int | None = None, batch_size: int = 16) -> list[Tensor]:
    """`shown` in batches: what `unsmooth.scan` and `unsmooth.explain` take.

    Args:
        model: One of these models or its name, or any network of ours with a `pixels.json`.
        count: How many images; None for all.
        batch_size: Images in a batch.
    """
    seen = shown(model, count)
    return [seen[start : start + batch_size] for start in range(0, len(seen), batch_size)]


def absent(what: str) -> UnsmoothError:
    """The error where files are not in this installation."""
    return expected(
        f"{what}, which the package unsmooth-demo brings", "no such files", "`pip install ./demo` in a checkout"
    )
