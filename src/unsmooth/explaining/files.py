"""An explanation on disk: explanation.json (everything), layers.csv, heads.csv, manifest.json (what made it)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unsmooth.errors import expected
from unsmooth.explaining.result import Explanation
from unsmooth.files import Saved, check_writable, finite, write_whole
from unsmooth.schema import parse

FORMAT = 3
_SAVED = Saved("explanation", "Explanation.save", "explain", "explaining again", FORMAT)


def save_explanation(found: Explanation, folder: Path) -> Path:
    """Write the four files; the manifest last, so that a folder with a manifest is whole."""
    check_writable(folder)
    write_whole(folder / "explanation.json", json.dumps(to_json(found), indent=1, allow_nan=False))
    write_whole(folder / "layers.csv", found.to_frame("layers").to_csv(index=False))
    write_whole(folder / "heads.csv", found.to_frame("heads").to_csv(index=False))
    write_whole(folder / "manifest.json", json.dumps(finite(dict(found.manifest)), indent=1, allow_nan=False))
    return folder


def load_explanation(folder: str | Path) -> Explanation:
    """Read an explanation that `Explanation.save` wrote."""
    return _SAVED.read(folder, _from_json)


def to_json(found: Explanation) -> dict[str, Any]:
    """Everything an explanation holds, in types that JSON has: complex numbers as pairs, NaN as null."""
    whole: dict[str, Any] = finite(_pairs(asdict(found)))
    # Their layers and heads are among those above, and the manifest is the same.
    whole["stacks"] = [{key: value for key, value in one.items() if key not in _SHARED} for one in whole["stacks"]]
    return {"format": FORMAT, **whole}


_SHARED = ("layers", "heads", "manifest", "stacks")


def _pairs(value: Any) -> Any:
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, Mapping):
        return {str(key): _pairs(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_pairs(item) for item in value]
    return value


def _from_json(content: Mapping[str, Any]) -> Explanation:
    stacks = parse(tuple[dict[str, Any], ...], content.get("stacks", ()), where="stacks")
    found = parse(Explanation, {name: value for name, value in content.items() if name not in ("format", "stacks")})
    parts = [parse(Explanation, {**one, "layers": (), "heads": ()}, where="stacks") for one in stacks]
    found = replace(found, stacks=tuple(_part(found, one) for one in parts))
    for one in found.parts:
        _check(one)
    return found


def _part(whole: Explanation, one: Explanation) -> Explanation:
    layers = tuple(layer for layer in whole.layers if layer.stack == one.stack)
    heads = tuple(head for head in whole.heads if head.stack == one.stack)
    return replace(one, layers=layers, heads=heads, manifest=whole.manifest)


def _check(found: Explanation) -> None:
    layers = Counter(one.layer for one in found.layers)
    heads = Counter((one.layer, one.head) for one in found.heads)
    wrong = {
        "a layer": not layers,
        "each layer and head once": max(*layers.values(), *heads.values(), 1) > 1,
        "layers from 0 to 100,000": any(not 0 <= layer <= 100_000 for layer in layers),
        "heads of its own layers": not {layer for layer, _ in heads} <= layers.keys(),
        "each skill once": len({one.name for one in found.skills}) < len(found.skills),
    }
    if missing := next((what for what, is_wrong in wrong.items() if is_wrong), None):
        raise expected(f"{missing} in an explanation", "another", "explaining again")
