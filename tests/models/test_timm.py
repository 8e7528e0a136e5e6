"""timm itself, in a process of its own; the harness also runs over a stand-in for its block, which needs no timm."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.apart import PATIENCE, run_checks
from unsmooth.errors import UnsmoothError
from unsmooth.models import load
from unsmooth.models.timm_models import read_name


@pytest.mark.timeout(PATIENCE + 60)
def test_with_timm() -> None:
    run_checks("timm", "timm", "tests/models/timm_checks.py")


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("timm:vit_tiny_patch16_224", "vit_tiny_patch16_224", {}),
        ("timm:vit_tiny_patch16_224.augreg_in21k()", "vit_tiny_patch16_224.augreg_in21k", {}),
        ("timm:deit_tiny_patch16_224(pretrained=False)", "deit_tiny_patch16_224", {"pretrained": False}),
        ("timm:a(img_size=(8, 9), global_pool='')", "a", {"img_size": (8, 9), "global_pool": ""}),
        ("timm:a(global_pool=avg)", "a", {"global_pool": "avg"}),
    ],
)
def test_name(text: str, name: str, options: dict[str, Any]) -> None:
    assert read_name(text) == (name, options)


@pytest.mark.parametrize("text", ["timm:", "timm:a b", "timm:a(", "timm:a(1)", "timm:a(**b)", "timm:a(b=1)c"])
def test_name_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UnsmoothError, match="Expected timm:NAME or"):
        load(text)


def test_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UnsmoothError, match=r"Expected timm, to load a model of it but got none.*unsmooth\[timm\]"):
        load("timm:vit_tiny_patch16_224")
