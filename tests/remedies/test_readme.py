"""What the pages say of remedies is what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unsmooth
from unsmooth.remedies import describe, names

DOCS = Path(__file__).parents[2] / "docs"
IN_A_DECODER = {
    "unchanged": "nothing crosses tokens",
    "prefix mean": "mean of the tokens seen",
    "masked": "only tokens seen",
    "none": "refused",
}


def test_the_table_is_the_registry() -> None:
    table = (
        (DOCS / "steer.md")
        .read_text(encoding="utf-8")
        .split("<!-- remedies")[1]
        .split("-->", 1)[1]
        .split("<!-- end of remedies")[0]
        .strip()
    )
    rows = ["| remedy | what it does | paper | in a decoder | folds |", "| --- | --- | --- | --- | --- |"]
    for name in names():
        one = describe(name)
        folds = "yes" if one.folds else "no"
        rows.append(f"| `{name}` | {one.summary} | {one.paper} | {IN_A_DECODER[one.causal]} | {folds} |")
    assert table.splitlines() == rows


def test_every_remedy_is_in_the_changelog() -> None:
    changes = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
    assert [name for name in names() if f"`{name}`" not in changes] == []


def test_the_example_of_a_remedy_of_ones_own_works(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "plugins.md").read_text(encoding="utf-8")
    code = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Gentle" in block)
    scope: dict[str, Any] = {}
    exec(code, scope)
    monkeypatch.setitem(unsmooth.remedies.REMEDIES._items, "gentle", scope["Gentle"])
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    x = torch.randn(2, 3, 8)
    seen = {}
    model.layers[0].dropout1.register_forward_hook(lambda module, args, out: seen.setdefault("plain", out))
    model(x)
    unsmooth.apply(model, "gentle")
    model.layers[0].dropout1.register_forward_hook(lambda module, args, out: seen.setdefault("gentle", out))
    model(x)
    torch.testing.assert_close(seen["gentle"], 0.5 * seen["plain"])
    with pytest.raises(unsmooth.UnsmoothError, match=r"gain between 0\.0 and 1\.0"):
        unsmooth.apply(unsmooth.undo(model), "gentle", gain=2.0)
