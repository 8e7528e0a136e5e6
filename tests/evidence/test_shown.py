"""Accuracy on corrupted images, with models whose answers one knows."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest
import torch
from torch import Tensor, nn

from unsmooth.evidence import STUDIES, Bench, shown
from unsmooth.evidence.corruptions import NAMES, corrupt
from unsmooth.evidence.shown import Shown, accuracy, corrupted_accuracy
from unsmooth.networks import ViT, ViTConfig
from unsmooth.training import Config

CPU = torch.device("cpu")
COUNT = 40


@pytest.fixture
def config() -> Config:
    return STUDIES["steering"].configs(Bench(scale="tiny"))["plain"]


class Constant(nn.Module):
    """Names one class, whatever it sees."""

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.eye(10)[3].expand(len(pixels), 10)


class Redness(nn.Module):
    """Names a class by how red the picture is."""

    def forward(self, pixels: Tensor) -> Tensor:
        red = pixels[:, 0].mean(dim=(1, 2))
        return -(red[:, None] - torch.linspace(-1.5, 1.5, 10)).abs()


def test_images_are_those_of_the_test_set_and_equally_many_of_each_class(config: Config) -> None:
    images, labels = Shown.of(config, CPU, COUNT).images()
    assert images.shape == (COUNT, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert labels.bincount().tolist() == [4] * 10


def test_who_names_one_class_is_right_once_in_ten(config: Config) -> None:
    found = corrupted_accuracy(Constant(), config, CPU, count=COUNT, names=["fog"], severities=[1, 5])
    assert found == {"fog": [0.1, 0.1]}


def test_against_numpy(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Corrupt, normalise, answer and count by hand; in more batches than one."""
    monkeypatch.setattr("unsmooth.evidence.shown.BATCH", 7)
    images, labels = Shown.of(config, CPU, COUNT).images()
    assert config.augment is not None
    found = corrupted_accuracy(Redness(), config, CPU, count=COUNT, names=["brightness"], severities=[2, 5])
    for severity, got in zip((2, 5), found["brightness"], strict=True):
        damaged = corrupt(images, "brightness", severity).numpy() / 255
        red = (damaged[:, 0].mean(axis=(1, 2)) - config.augment.mean[0]) / config.augment.std[0]
        answers = numpy.abs(red[:, None] - numpy.linspace(-1.5, 1.5, 10)).argmin(axis=1)
        assert got == pytest.approx((answers == labels.numpy()).mean())
    assert found["brightness"][0] != accuracy(Redness(), config, images, labels), "brightness has an effect"


def test_images_are_corrupted_once_for_all_models(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noted(images: Tensor, name: str, severity: int) -> Tensor:
        asked.append((name, severity))
        return images

    monkeypatch.setattr(shown, "corrupt", noted)
    shown._corrupted.cache_clear()
    other_seed = replace(config, seed=5, remedies=("sharpen",))
    for one in (config, other_seed):
        corrupted_accuracy(Constant(), one, CPU, count=COUNT, names=NAMES[:2], severities=[1, 3])
    shown._corrupted.cache_clear()  # what was made here is not corrupted at all
    assert asked == [(name, severity) for name in NAMES[:2] for severity in (1, 3)]


def test_steering_looks_at_corruptions_and_branches(config: Config) -> None:
    assert isinstance(config.network, ViTConfig)
    torch.manual_seed(0)
    found = STUDIES["steering"].look(ViT(config.network).eval(), config, CPU)
    assert found["severities"] == [1, 3, 5]
    assert {name: len(values) for name, values in found["corrupted"].items()} == dict.fromkeys(NAMES[:2], 3)
    assert 0 <= found["clean"] <= 1
    assert len(found["branches"]) == config.network.depth
