from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.training.tiny_runs import tiny
from unsmooth.errors import UnsmoothError
from unsmooth.networks.config import DecoderConfig, EncoderConfig
from unsmooth.training import RECIPES, Config, recipe
from unsmooth.training.plain import from_plain, override, paths, to_plain


@pytest.mark.parametrize("name", sorted(RECIPES))
@pytest.mark.parametrize("size", ["tiny", "base"])
def test_every_recipe_comes_back_from_json(name: str, size: Any) -> None:
    config = recipe(name, size)
    assert from_plain(Config, json.loads(json.dumps(to_plain(config)))) == config


@pytest.mark.parametrize("network", [EncoderConfig(vocabulary=9), DecoderConfig(vocabulary=9, memory=4)])
def test_the_kind_of_network_is_kept(network: Any) -> None:
    config = replace(tiny(), network=network, augment=None)
    found = from_plain(Config, json.loads(json.dumps(to_plain(config))))
    assert type(found.network) is type(network)
    assert found == config


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("optimiser.lr", "3e-4", 3e-4),
        ("lr", "1", 1.0),
        ("seed", "7", 7),
        ("micro_batch", "none", None),
        ("micro_batch", "4", 4),
        ("deterministic", "no", False),
        ("decay_vectors", "true", True),
        ("betas", "0.9, 0.98", (0.9, 0.98)),
        ("measuring.at", "(1,2.5)", (1.0, 2.5)),
        ("remedies", "sharpen", ("sharpen",)),
        ("losses", "cosine(weight=0.1, layer=-1),dispersion", ("cosine(weight=0.1, layer=-1)", "dispersion")),
        ("losses", "(cosine(weight=0.1), dispersion(form=cosine))", ("cosine(weight=0.1)", "dispersion(form=cosine)")),
        ("losses", "cosine(weight=0.1),", ("cosine(weight=0.1)",)),
        ("losses", "", ()),
        ("data.hold_out", "0.1", 0.1),
        ("precision", "float64", "float64"),
        ("data.path", "some/where", "some/where"),
        ("network.norm", "peri", "peri"),
    ],
)
def test_text_is_read_as_the_setting_asks(name: str, text: str, value: object) -> None:
    config = override(tiny(), {name: text})
    path = next(one for one in paths(config) if one == name or one.endswith(f".{name}"))
    found: Any = config
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimiser.lrr": "1"}, r"a known setting but got 'optimiser.lrr'. Did you mean 'optimiser.lr'"),
        ({"name": "x"}, "one setting called 'name' but got 2: data.name, schedule.name"),
        ({"seed": "seven"}, "seed as int but got 'seven'"),
        ({"seed": "1.5"}, "seed as int but got '1.5'"),
        ({"precision": "float8"}, "a known precision but got 'float8'"),
        ({"deterministic": "perhaps"}, "deterministic as bool but got 'perhaps'"),
        ({"steps": "0"}, "steps above 0 but got 0"),
        ({"epochs": "3"}, "epochs or steps, one of the two but got both"),
        ({"micro_batch": "9"}, "a micro_batch from 1 to the batch of 8 but got 9"),
        ({"ramp": "2"}, "ramp from 0 to 1"),
        ({"seed": "nan"}, "seed as int but got 'nan'"),
        ({"seed": "inf"}, "seed as int but got 'inf'"),
        ({"warmup": "nan"}, "warmup as float but got 'nan'"),
        ({"lr": "1e400"}, "lr as float but got '1e400'"),
        ({"lr": "-1"}, "a finite lr of 0 or more but got -1.0"),
    ],
)
def test_wrong_settings_are_told_in_one_line(changes: dict[str, str], words: str) -> None:
    with pytest.raises(UnsmoothError, match=words) as caught:
        override(tiny(), changes)
    assert "\n" not in str(caught.value)


def test_the_original_is_left_alone() -> None:
    config = tiny()
    before = to_plain(config)
    override(config, {"seed": "9", "lr": "5"})
    assert to_plain(config) == before


def test_settings_that_need_each_other_are_changed_together() -> None:
    config = override(tiny(), {"steps": "none", "epochs": "2"})
    assert (config.steps, config.epochs) == (None, 2.0)


def test_whole_numbers_are_read_to_the_last_digit() -> None:
    assert override(tiny(), {"seed": str(2**60 + 1)}).seed == 2**60 + 1
    assert override(tiny(), {"batch": "1e3", "micro_batch": "8"}).batch == 1000
