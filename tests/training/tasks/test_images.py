"""Images from memory and from files: the same task, whoever decodes them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image

from tests.training.tasks.building import built, here, loss_at, network_of
from tests.training.tiny_runs import tiny
from unsmooth import keyed
from unsmooth.errors import UnsmoothError
from unsmooth.training.config import Config
from unsmooth.training.tasks.images import ImageFiles, ImageFileTask, ResidentImages


@pytest.fixture
def folder(workplace: Path) -> Path:
    random = numpy.random.default_rng(0)
    for split, count in (("train", 6), ("val", 3)):
        for label in range(4):
            place = workplace / "pictures" / split / f"class{label}"
            place.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (12, 14, 3), dtype=numpy.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    return workplace / "pictures"


def files_config(folder: Path, **changes: Any) -> Config:
    return tiny(task="image_files", data__path=str(folder), data__train_limit=None, data__test_limit=None, **changes)


def test_batches_are_the_crops_of_their_samples(folder: Path) -> None:
    task = built(files_config(folder))
    assert isinstance(task, ImageFileTask)
    assert isinstance(task.source, ImageFiles)
    files, cropping = task.source.train, keyed.stream(0, "resized crop")
    for batch in (0, 1, 2, 3, 7, 1):  # over the end of an epoch, a jump, and back
        task.begin(batch)
        taken = task.source.take(torch.tensor(batch))
        keys = keyed.keys(cropping, batch // 3, taken.sample, 0).tolist()
        for place, (sample, key) in enumerate(zip(taken.sample.tolist(), keys, strict=True)):
            assert torch.equal(taken.images[place], files.load(sample, key, 8))
            assert taken.labels[place] == sample // 6


def test_two_processes_decode_what_one_decodes(folder: Path) -> None:
    config = files_config(folder, engine__precision="float64")
    one = built(config)
    halves = [built(config, here(rank, 2)) for rank in (0, 1)]
    model = network_of(one)
    for batch in (0, 4):
        parts = [loss_at(half, model, batch) for half in halves]
        assert abs((parts[0] + parts[1]) / 2 - loss_at(one, model, batch)).item() < 1e-6  # images are float32


def test_repeats_are_other_crops_of_the_same_images(folder: Path) -> None:
    task = built(files_config(folder, repeats=2))
    task.begin(0)
    taken = task.source.take(torch.tensor(0))  # type: ignore[attr-defined]
    assert torch.equal(taken.sample[::2], taken.sample[1::2])
    assert len(set(taken.sample.tolist())) == 4
    assert not torch.equal(taken.images[::2], taken.images[1::2])


@pytest.mark.parametrize("from_files", [True, False])
def test_evaluation_against_numpy(folder: Path, from_files: bool) -> None:
    task = built(files_config(folder) if from_files else tiny(engine__precision="float64"))
    model = network_of(task).eval()
    source = task.source  # type: ignore[attr-defined]
    images, labels = source.test(torch.arange(source.tests))
    mean, std = (numpy.array(part).reshape(1, 3, 1, 1) for part in (task.config.augment.mean, task.config.augment.std))  # type: ignore[union-attr]
    seen = torch.from_numpy((images.numpy() / 255.0 - mean) / std).to(task.dtype)
    with torch.no_grad():
        logits = model(seen).double().numpy()
    nats = numpy.log(numpy.exp(logits).sum(1)) - logits[numpy.arange(len(logits)), labels]
    found = task.evaluate(model)
    assert found["loss"] == pytest.approx(nats.mean(), abs=1e-5)
    assert found["accuracy"] == pytest.approx((logits.argmax(1) == labels.numpy()).mean())
    assert sum(len(part) for part in task.probe(5)) == 5


def test_without_files_images_are_made_up(workplace: Path) -> None:
    task = built(tiny(task="image_files", data__name="imagenet"))
    assert isinstance(task.source, ResidentImages)  # type: ignore[attr-defined]
    assert task.describe()["synthetic"] is True


def test_labels_have_as_many_classes_as_the_network() -> None:
    with pytest.raises(
        UnsmoothError, match=r"Expected augment\.classes of 3, as the network has but got 4\. Try --set"
    ):
        built(tiny(network__classes=3))


def test_a_broken_file_is_named(folder: Path) -> None:
    for file in (folder / "train").rglob("*.png"):
        file.write_bytes(b"no image")
    task = built(files_config(folder))
    with pytest.raises(UnsmoothError, match=r"a whole image in .*class\d.*\.png"):
        task.begin(0)


def test_limits_are_spread_over_the_classes(folder: Path) -> None:
    config = files_config(folder)
    task = built(dataclasses.replace(config, data=dataclasses.replace(config.data, train_limit=8, test_limit=4)))
    source = task.source  # type: ignore[attr-defined]
    assert source.train.labels.bincount().tolist() == [2, 2, 2, 2]
    assert source.test(torch.arange(4))[1].tolist() == [0, 1, 2, 3]
