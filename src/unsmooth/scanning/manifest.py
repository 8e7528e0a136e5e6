"""What made a scan: enough to know whether two numbers may be compared."""

from __future__ import annotations

import datetime
import functools
import hashlib
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.functional import BoundMetric
from unsmooth.models import Anatomy, origin_of
from unsmooth.models.fingerprint import HASHED, add_tensor
from unsmooth.models.remedied import describe_remedies
from unsmooth.scanning.calling import TOKEN_CHOICES
from unsmooth.scanning.confounds import MASSIVE_TOKEN_RATIO, OUTLIER_DIMENSION_RATIO
from unsmooth.scanning.data import Cut, RawBatch, Source
from unsmooth.scanning.sentence import DIRECTION

PACKAGES = (
    "unsmooth",
    "torch",
    "torchmetrics",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "scipy",
    "gguf",
)
AGGREGATION = "mean over sequences of per-sequence values; 95 % Student-t interval over sequences"


def hash_batch(batch: RawBatch) -> bytes:
    """SHA-256 of the tensors of one batch, by name, type, shape and bytes."""
    digest = hashlib.sha256()
    fields: Mapping[str, Any] = {"": batch} if isinstance(batch, Tensor) else batch
    for key in sorted(fields):
        if isinstance(fields[key], Tensor):
            add_tensor(digest, key, fields[key])
    return digest.digest()


def combine_hashes(digests: Sequence[bytes]) -> str:
    """One hash for batches in order."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


def describe_model(
    stacks: Sequence[Anatomy], model: nn.Module, device: torch.device, weights: str | None
) -> dict[str, Any]:
    """Who the model is, by name and, where `weights` were hashed, by content."""
    blocks = {path: block for stack in stacks for path, block in stack.blocks.items()}
    named = {stack.stack: len(stack.blocks) for stack in stacks if stack.stack}
    origin = origin_of(model)
    parameters = list(model.parameters())
    return {
        "id": origin.id if origin else None,
        "revision": origin.revision if origin else None,
        "class": type(model).__name__,
        "host": ", ".join(dict.fromkeys(stack.host.name for stack in stacks)),
        "blocks": len(blocks),
        **({"stacks": named} if named else {}),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "dtype": sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters}),
        "remedies": describe_remedies(blocks),
        "weights_sha256": weights,
        "weights_sha256_of": HASHED,
        "device": _device_name(device),
    }


def cut_note(data: Mapping[str, Any]) -> list[str]:
    """That texts were cut, from what a manifest says of the data; nothing where none was.

    >>> cut_note({"max_length": 512, "cut": {"texts": 1, "tokens": 88, "of_tokens": 600}})
    ['Texts of more than 512 tokens were cut (1 of them): 88 of 600 tokens went.']
    """
    cut = data.get("cut")
    if not cut or not cut["tokens"]:
        return []
    return [
        f"Texts of more than {data['max_length']} tokens were cut ({cut['texts']} of them): {cut['tokens']} of "
        f"{cut['of_tokens']} tokens went."
    ]


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({platform.processor() or platform.machine()})"


def describe_data(source: Source, digests: Sequence[bytes], sequences: int, tokens: int) -> dict[str, Any]:
    """What was read, and of texts what was cut off at `max_length`."""
    cuts = [cut for number, cut in sorted(source.cuts.items()) if number < len(digests)]
    return {
        "kind": source.kind,
        **source.details,
        **({"cut": Cut(*map(sum, zip(*cuts, strict=True)))._asdict()} if cuts else {}),
        "batches": len(digests),
        "sequences": sequences,
        "tokens": tokens,
        "sha256": combine_hashes(digests),
    }


def describe_definitions(metrics: Sequence[BoundMetric], sites: Mapping[str, str], tokens: str) -> dict[str, Any]:
    """What every number means."""
    return {
        "metrics": {metric.name: metric.definition for metric in metrics},
        "sites": dict(sites),
        "tokens": f"{tokens}: {TOKEN_CHOICES[tokens]}",
        "aggregation": AGGREGATION,
        "direction": DIRECTION,
        "massive_token": f"norm more than {MASSIVE_TOKEN_RATIO:g} times the median norm of the sequence's tokens",
        "outlier_dimension": f"mean absolute value more than {OUTLIER_DIMENSION_RATIO:g} times the median dimension's",
        "precision": "statistics in float32 or better, sums over sequences in float64",
    }


def describe_versions() -> dict[str, str]:
    """Versions of everything that could change a number."""
    return dict(_versions())


@functools.cache
def _versions() -> Mapping[str, str]:
    """They do not change while a process runs, and reading them takes as long as some scans do."""
    found = {"python": platform.python_version(), "platform": platform.system()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
