"""SHA-256 over exact values: every bit of a number counts, and nothing that a clock or a place on disk says."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

# What differs from one run to the next by name, and by what it looks like in a text.
CLOCKED = {
    *("seconds", "total_seconds", "gpu_minutes", "minutes", "samples_per_second", "time", "when", "date", "since"),
    *("commit", "changed", "version", "versions", "unsmooth", "hardware", "host", "pid", "ratio", "memory", "call"),
}
_OTHER_NAME = re.compile(r"^\.|tfevents")  # locks, notes, and what has the time in its name
_CLOCKED = re.compile("second|step_time")
_TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?|\d{4}-\d\d-\d\d"
    r"|\b[0-9a-f]{40}\b|commit [0-9a-f]{7,40}"
    r"|[\d.,]+ (ms|s|seconds?|minutes?|hours?|MiB|samples/s)\b|\b\d+:\d\d(:\d\d)?\b|×[\d.]+|[\d.]+×"
)


class Scrub:
    """Takes out of texts what says where and when they were made.

    Args:
        folder: Below which everything is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def text(self, text: str) -> str:
        """A text without times, commits and the folder's name."""
        for place, name in ((self.folder, "FOLDER"), (Path(self.folder).name, "FOLDER"), (str(Path.cwd()), "HERE")):
            text = text.replace(place, name)
        return _TIMES.sub("#", text)

    def content(self, value: Any) -> Any:
        """What JSON says, likewise."""
        if isinstance(value, Mapping):
            return {
                key: self.content(one) for key, one in value.items() if not (key in CLOCKED or _CLOCKED.search(key))
            }
        if isinstance(value, list | tuple):
            return [self.content(one) for one in value]
        return self.text(value) if isinstance(value, str) else value

    def file(self, path: Path) -> Any:
        """What a file says, by its ending."""
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix == ".pt":
            return torch.load(path, weights_only=True)["state"]
        if path.suffix in (".png", ".pdf") or path.name == "index.json":
            return path.name  # with times inside, or drawn by the same text as the SVG beside it
        content = path.read_bytes()
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return content
        if path.suffix == ".json":
            return self.content(json.loads(text))
        if path.suffix == ".jsonl":
            return [self.content(json.loads(line)) for line in text.splitlines()]
        return self.text(text)

    def files(self, folder: Path) -> dict[str, Any]:
        """All files of a folder by path."""
        found = sorted(path for path in folder.rglob("*") if path.is_file() and not _OTHER_NAME.search(path.name))
        return {path.relative_to(folder).as_posix(): self.file(path) for path in found}


def digest(value: Any) -> str:
    """SHA-256 of a value, of whatever it is made.

    >>> digest({"a": 1.0}) == digest({"a": 1.0 + 2**-52})
    False
    """
    hashed = hashlib.sha256()
    for part in _parts(value):
        hashed.update(part)
        hashed.update(b"\0")
    return hashed.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield value.view(torch.uint8).numpy().tobytes() if value.ndim else repr(value.item()).encode()
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value).__name__.encode()
        for field in fields(value):
            yield from _parts((field.name, getattr(value, field.name)))
    elif isinstance(value, Mapping):
        yield b"{"
        for key in sorted(value, key=str):
            yield from _parts((str(key), value[key]))
    elif isinstance(value, str | bytes):
        yield value.encode(errors="surrogatepass") if isinstance(value, str) else value
    elif isinstance(value, Iterable):
        yield b"["
        for one in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
            yield from _parts(one)
        yield b"]"
    else:  # the shortest text that gives the same float again
        yield repr(value).encode()
