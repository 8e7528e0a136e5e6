"""Each operation of RandAugment on our tensors, beside Pillow on the same images.

    python -m benchmarks.augment_exactness [--images 1000] [--data test.bin] [--out benchmarks/results/…json]

Images are synthetic by default: noise with the spectrum of natural images, as well as flat, black and two-level ones;
`--data` reads a binary file of CIFAR-100 instead. Arguments come from the laws of timm, written down here a second time
in plain Python, at six fixed levels and at random ones. Counted are grey levels that differ, by 1 and by more. Besides,
the number of operators that the whole augmentation of a batch asks of the device without a compiler.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unsmooth import keyed
from unsmooth.files import write_whole
from unsmooth.training.augment import Augment, AugmentConfig, Choice, RandAugment
from unsmooth.training.augment.operations import NAMES, number

OUT = Path(__file__).parent / "results" / "augment_exactness.json"
FILL = (129, 124, 112)
LEVELS = (0.0, 1.7, 5.0, 8.35, 9.0, 10.0)
WITHOUT_LEVEL = ("AutoContrast", "Equalize", "Invert")
INCREASING = ("Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness")
INTERPOLATED = ("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel")
_CIFAR_RECORD = 2 + 3 * 32 * 32
_CHUNK = 50


def argument_of(name: str, level: float, negative: bool, increasing: bool = False) -> float:
    """What timm calls an operation with at a level."""
    part = level / 10.0
    sign = -1 if negative else 1
    if name in ("Color", "Contrast", "Brightness", "Sharpness"):
        return max(0.1, 1.0 + sign * (part * 0.9)) if increasing else part * 1.8 + 0.1
    if name == "Posterize":
        return 4 - int(part * 4) if increasing else int(part * 4)
    if name == "Solarize":
        return 256 - int(part * 256) if increasing else int(part * 256)
    if name == "SolarizeAdd":
        return int(part * 110)
    if name in INTERPOLATED:
        return sign * (part * {"Rotate": 30.0, "ShearX": 0.3, "ShearY": 0.3}.get(name, 0.45))
    return 0.0


def by_pillow(name: str, image: Image.Image, argument: float, cubic: bool) -> Image.Image:
    """One operation on one image."""
    enhance: dict[str, Any] = {kind: getattr(ImageEnhance, kind) for kind in ("Color", "Contrast", "Brightness")}
    enhance["Sharpness"] = ImageEnhance.Sharpness
    if name in enhance:
        return enhance[name](image).enhance(argument)
    simple: dict[str, Callable[[], Image.Image]] = {
        "AutoContrast": lambda: ImageOps.autocontrast(image),
        "Equalize": lambda: ImageOps.equalize(image),
        "Invert": lambda: ImageOps.invert(image),
        # Pillow refuses 0 bits since version 12; before, the result was black.
        "Posterize": lambda: ImageOps.posterize(image, int(argument)) if argument else image.point([0] * 768),
        "Solarize": lambda: ImageOps.solarize(image, int(argument)),
        "SolarizeAdd": lambda: image.point([min(255, i + int(argument)) if i < 128 else i for i in range(256)] * 3),
    }
    return simple[name]() if name in simple else _moved(name, image, argument, cubic)


def _moved(name: str, image: Image.Image, argument: float, cubic: bool) -> Image.Image:
    resample = Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
    if name == "Rotate":
        return image.rotate(argument, resample=resample, fillcolor=FILL)
    width, height = image.size
    matrix = {
        "ShearX": (1, argument, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, argument, 1, 0),
        "TranslateXRel": (1, 0, argument * width, 0, 1, 0),
        "TranslateYRel": (1, 0, 0, 0, 1, argument * height),
    }[name]
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=resample, fillcolor=FILL)


def synthetic(count: int, side: int = 32, seed: int = 0) -> np.ndarray:
    """Noise whose amplitude falls with frequency, and one in eight flat, black, or of two levels."""
    generator = np.random.default_rng(seed)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side)))
    spectrum = np.fft.fft2(generator.normal(size=(count, 3, side, side))) / np.maximum(frequency, 1 / side)
    images = np.fft.ifft2(spectrum).real
    images = images / images.std(axis=(1, 2, 3), keepdims=True) * generator.uniform(10, 90, size=(count, 1, 1, 1))
    images = np.clip(images + generator.uniform(40, 215, size=(count, 3, 1, 1)), 0, 255).astype(np.uint8)
    images[0::32] = images[0::32, :, :1, :1]
    images[8::32] = 0
    images[16::32] = np.where(images[16::32] > 128, 200, 17)
    images[24::32] = np.where(images[24::32] > 250, images[24::32], 3)
    return images


def cifar(path: Path, count: int) -> np.ndarray:
    """The first images of a binary file of CIFAR-100."""
    records = np.fromfile(path, dtype=np.uint8, count=count * _CIFAR_RECORD).reshape(-1, _CIFAR_RECORD)
    return records[:, 2:].reshape(-1, 3, 32, 32).copy()


def ours(name: str, images: np.ndarray, arguments: Sequence[float], cubic: bool) -> np.ndarray:
    """One operation on many images at once."""
    policy = RandAugment.parse("rand-m9-n1", fill=FILL)
    shape = (len(images), 1)
    choice = Choice(
        torch.full(shape, number(name)),
        torch.tensor(arguments, dtype=torch.float64).view(shape),
        torch.full(shape, cubic),
    )
    return policy.carry_out(torch.from_numpy(images), choice).numpy()


def theirs(name: str, images: np.ndarray, arguments: Sequence[float], cubic: bool) -> np.ndarray:
    """The same by Pillow, one after the other."""
    pictures = [Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))) for image in images]
    results = [by_pillow(name, picture, argument, cubic) for picture, argument in zip(pictures, arguments, strict=True)]
    return np.stack([np.asarray(result) for result in results]).transpose(0, 3, 1, 2)


def differences(name: str, images: np.ndarray, arguments: Sequence[float], cubic: bool) -> np.ndarray:
    """Grey levels between the two, in chunks that fit a cache."""
    parts = []
    for start in range(0, len(images), _CHUNK):
        part = slice(start, start + _CHUNK)
        pair = (way(name, images[part], arguments[part], cubic).astype(np.int16) for way in (ours, theirs))
        parts.append(np.abs(np.subtract(*pair)))
    return np.concatenate(parts)


def summary(difference: np.ndarray) -> dict[str, float]:
    """How far apart the two are."""
    return {
        "images": len(difference),
        "greatest": int(difference.max()),
        "mean": float(difference.mean()),
        "share_off_by_1": float((difference == 1).mean()),
        "share_off_by_more": float((difference > 1).mean()),
    }


def measure(name: str, images: np.ndarray) -> dict[str, Any]:
    """One operation: images in turns at fixed levels, then all at random ones; with each interpolation it has."""
    generator = np.random.default_rng(number(name))
    heads = generator.random(len(images)) < 0.5
    drawn = np.clip(generator.normal(9, 1, len(images)), 0, 10)
    settings: dict[str, dict[str, float]] = {}
    for kind, cubic in (("bilinear ", False), ("bicubic ", True)) if name in INTERPOLATED else (("", False),):
        at_levels = [argument_of(name, LEVELS[i % len(LEVELS)], heads[i]) for i in range(len(images))]
        fixed = differences(name, images, at_levels, cubic)
        if name in WITHOUT_LEVEL:
            settings["any level"] = summary(fixed)
            continue
        settings |= {f"{kind}level {level:g}": summary(fixed[i :: len(LEVELS)]) for i, level in enumerate(LEVELS)}
        for increasing in (False, True) if name in INCREASING else (False,):
            given = [argument_of(name, *pair, increasing) for pair in zip(drawn, heads, strict=True)]
            label = f"{kind}levels from N(9, 1){', increasing' * increasing}"
            settings[label] = summary(differences(name, images, given, cubic))
    return {"greatest": max(row["greatest"] for row in settings.values()), "settings": settings}


class Counting(TorchDispatchMode):
    """How often each operator runs; those that only look at memory in another way are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count, and carry on."""
        if not func.is_view and not str(func).startswith(("aten.empty", "aten._unsafe_view", "aten.detach")):
            self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def operators(config: AugmentConfig, batch: int = 96) -> dict[str, int]:
    """What the whole augmentation of a batch asks of the device: about one kernel for each operator."""
    augment = Augment(config)
    images, labels = torch.zeros(batch, 3, 32, 32, dtype=torch.uint8), torch.zeros(batch, dtype=torch.int64)
    keys: Tensor = keyed.keys(0, torch.arange(batch))
    with Counting() as counting:
        augment(images, labels, keys, torch.tensor(1))
    return {"total": counting.counts.total(), **dict(counting.counts.most_common(12))}


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    start = time.process_time()
    images = cifar(asked.data, asked.images) if asked.data else synthetic(asked.images)
    results = {name: measure(name, images) for name in NAMES}
    record = {
        "what": __doc__.splitlines()[0],
        "machine": {
            "processor": platform.machine(),
            "torch": torch.__version__,
            "pillow": PIL.__version__,
            "python": platform.python_version(),
        },
        "images": {"from": f"CIFAR-100, {asked.data.name}" if asked.data else "synthetic", "count": len(images)},
        "processor_seconds": round(time.process_time() - start, 1),
        "greatest": max(result["greatest"] for result in results.values()),
        "operators": {
            "all but erasing": operators(AugmentConfig()),
            "all": operators(AugmentConfig(erase=0.25)),
            "crop and flip": operators(AugmentConfig(rand="", mixup=0.0, cutmix=0.0)),
        },
        "operations": results,
    }
    write_whole(asked.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
