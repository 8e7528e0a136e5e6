from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.networks.tiny import DECODER, ENCODER, VIT
from unsmooth import networks
from unsmooth.errors import UnsmoothError


@pytest.mark.parametrize("config", [VIT, ENCODER, DECODER], ids=lambda config: config.kind)
def test_through_json_and_back(config: networks.Config) -> None:
    text = json.dumps(config.to_dict())
    assert networks.from_dict(json.loads(text)) == config
    assert json.loads(text)["kind"] == config.kind


@pytest.mark.parametrize(
    ("config", "wrong", "words"),
    [
        (VIT, {"heads": 3}, "dim divisible by heads but got dim=16, heads=3"),
        (VIT, {"depth": 0}, "depth of 1 or more but got 0"),
        (VIT, {"dim": True}, "dim of 1 or more"),
        (VIT, {"image": 9}, "image divisible by patch"),
        (VIT, {"norm": "per"}, "Did you mean 'peri'"),
        (VIT, {"activation": "gegl"}, "Did you mean 'geglu'"),
        (VIT, {"init": "mimic"}, "Did you mean 'mimetic'"),
        (VIT, {"pooling": "clas"}, "Did you mean 'class'"),
        (VIT, {"dropout": 1.0}, "dropout from 0 up to, not including, 1 but got 1.0"),
        (VIT, {"drop_path": -0.1}, "drop_path from 0"),
        (VIT, {"drop_path": "much"}, "drop_path from 0"),
        (ENCODER, {"positions": "relative"}, "Known: learned, scaled_sinusoidal, sinusoidal"),
        (ENCODER, {"vocabulary": 0}, "vocabulary of 1 or more"),
        (DECODER, {"positions": "relativ"}, "Did you mean 'relative'"),
        (DECODER, {"memory": -1}, "memory of 0 tokens or more"),
        (DECODER, {"positions": "learned"}, "relative positions where there is a memory"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_what_is_wrong_is_told(config: networks.Config, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsmoothError) as found:
        replace(config, **wrong)
    assert words in str(found.value)


def test_a_vocabulary_is_asked_for() -> None:
    with pytest.raises(UnsmoothError, match="a vocabulary for a decoder but got none"):
        networks.from_dict({"kind": "decoder"})
