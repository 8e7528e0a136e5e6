"""An explanation on disk: explanation.json (everything), layers.csv, heads.csv, manifest.json (what made it)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unsmooth.explaining.result import (
    Breakdown,
    Explanation,
    Gains,
    HeadFinding,
    LayerFinding,
    RuleScore,
    Stack,
)
from unsmooth.files import Saved, check_writable, finite, write_whole

FORMAT = 1
_SAVED = Saved("explanation", "Explanation.save", "explain", "explaining again", FORMAT)
_COMPLEX = ("feature_eigenvalue", "token_eigenvalue")


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
    return {"format": FORMAT, **finite(_pairs(asdict(found)))}


def _pairs(value: Any) -> Any:
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, Mapping):
        return {str(key): _pairs(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_pairs(item) for item in value]
    return value


def _from_json(content: dict[str, Any]) -> Explanation:
    return Explanation(
        name=content["name"],
        layers=tuple(_layer(item) for item in content["layers"]),
        heads=tuple(_head(item) for item in content["heads"]),
        scores=tuple(RuleScore(**item) for item in content["scores"]),
        rules=content["rules"],
        stack=None if content["stack"] is None else Stack(**_numbers(content["stack"])),
        manifest=content["manifest"],
        notes=tuple(content["notes"]),
        sentence=content["sentence"],
    )


def _layer(item: dict[str, Any]) -> LayerFinding:
    nested = {
        "gains": None if item["gains"] is None else Gains(**_numbers(item["gains"])),
        "breakdown": None if item["breakdown"] is None else Breakdown(**_numbers(item["breakdown"])),
        "eigenvalues": tuple(_complex(pair) for pair in item["eigenvalues"]),
    }
    return LayerFinding(**{**item, **_numbers(item, ("mean_modulus", "margin")), **nested})


def _head(item: dict[str, Any]) -> HeadFinding:
    known = {name: None if item[name] is None else _complex(item[name]) for name in _COMPLEX}
    always = ("mean_modulus", "margin", "asymmetry", "condition", "range_low", "range_high")
    return HeadFinding(**{**item, **_numbers(item, always), **known})


def _numbers(item: dict[str, Any], names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Null where a number must stand is NaN."""
    wanted = item if names is None else names
    return {name: float("nan") if item[name] is None else item[name] for name in wanted}


def _complex(pair: list[float | None]) -> complex:
    real, imaginary = (float("nan") if part is None else part for part in pair)
    return complex(real, imaginary)
