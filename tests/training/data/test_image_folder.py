"""Images decoded one by one, against Pillow called by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

from unsmooth.errors import UnsmoothError
from unsmooth.training.data.image_folder import (
    random_part,
    read_image_folder,
    read_image_folders,
    read_whole,
)


def picture(width: int, height: int, seed: int = 0, mode: str = "RGB") -> Image.Image:
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    return Image.fromarray(numpy.random.default_rng(seed).integers(0, 256, shape, dtype=numpy.uint8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, count in (("train", 3), ("val", 1)):
        for name in ("zebra", "ant"):
            place = tmp_path / split / name
            place.mkdir(parents=True)
            for number in range(count):
                picture(40 + number, 30, number).save(place / f"{number}.png")
    (tmp_path / "train" / "ant" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / ".hidden").mkdir()
    return tmp_path


def test_classes_are_alphabetical(folder: Path) -> None:
    train, test = read_image_folders(folder)
    assert train.names == ("ant", "zebra")
    assert train.classes == 2
    assert train.files == ("ant/0.png", "ant/1.png", "ant/2.png", "zebra/0.png", "zebra/1.png", "zebra/2.png")
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert len(test) == 2


def test_the_training_crop_is_pillows(folder: Path) -> None:
    train = read_image_folder(folder / "train")
    found = train.load(4, key=123456, size=16)
    left, top, width, height = random_part(41, 30, 123456)
    image = Image.open(folder / "train" / "zebra" / "1.png")
    wanted = image.crop((left, top, left + width, top + height)).resize((16, 16), Image.Resampling.BICUBIC)
    numpy.testing.assert_array_equal(found.permute(1, 2, 0).numpy(), numpy.asarray(wanted))
    assert torch.equal(found, train.load(4, key=123456, size=16))
    assert not torch.equal(found, train.load(4, key=123457, size=16))


def test_the_evaluation_crop_is_the_centre(tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    picture(500, 375).save(tmp_path / "only" / "a.png")
    found = read_image_folder(tmp_path).load_eval(0, 224)
    # 375 → 256 makes 500 → 341; then 224 × 224 from the centre.
    resized = Image.open(tmp_path / "only" / "a.png").resize((341, 256), Image.Resampling.BICUBIC)
    wanted = numpy.asarray(resized)[16:240, 58:282]
    numpy.testing.assert_array_equal(found.permute(1, 2, 0).numpy(), wanted)


def test_random_parts_have_the_areas_and_ratios_of_the_definition() -> None:
    parts = [random_part(640, 480, key * 7919) for key in range(2000)]
    area = numpy.array([width * height / (640 * 480) for *_, width, height in parts])
    ratio = numpy.log([width / height for *_, width, height in parts])
    assert all(0 <= left <= 640 - w and 0 <= top <= 480 - h for left, top, w, h in parts)
    assert 0.079 < area.min() < 0.1
    assert area.max() > 0.95
    assert ratio.min() > math.log(3 / 4) - 0.02
    assert ratio.max() < math.log(4 / 3) + 0.02
    # Large parts of some shapes do not fit and are drawn again: simulated with another generator.
    generator = numpy.random.default_rng(0)
    drawn = []
    while len(drawn) < 20_000:
        pixels = 640 * 480 * generator.uniform(0.08, 1)
        shape = math.exp(generator.uniform(math.log(3 / 4), math.log(4 / 3)))
        if math.sqrt(pixels * shape) <= 640 and math.sqrt(pixels / shape) <= 480:
            drawn.append(pixels / (640 * 480))
    assert abs(area.mean() - numpy.mean(drawn)) < 4 * numpy.std(drawn) / math.sqrt(2000)
    free = [(left / (640 - w), top / (480 - h)) for left, top, w, h in parts if w < 600 and h < 440]
    assert abs(numpy.mean(free) - 0.5) < 0.03


def test_a_long_image_falls_back_on_its_centre() -> None:
    assert random_part(1000, 10, key=3) == (493, 0, 13, 10)
    assert random_part(10, 1000, key=3) == (0, 493, 10, 13)


def test_grey_and_transparent_images_have_three_channels(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    picture(8, 8, mode="L").save(tmp_path / "c" / "grey.png")
    picture(8, 8).convert("RGBA").save(tmp_path / "c" / "see-through.png")
    images = read_image_folder(tmp_path)
    assert images.load_whole(0).shape == images.load_whole(1).shape == (3, 8, 8)
    assert torch.equal(images.load_whole(0)[0], images.load_whole(0)[2])


@pytest.mark.parametrize("damage", ["text", "cut", "empty"])
def test_a_broken_image_is_named(folder: Path, damage: str) -> None:
    path = folder / "train" / "ant" / "1.png"
    content = {"text": b"not an image", "cut": path.read_bytes()[:200], "empty": b""}[damage]
    path.write_bytes(content)
    train, test = read_image_folders(folder)
    for load in (
        lambda: train.load(1, 0, 8),
        lambda: train.load_eval(1, 8),
        lambda: read_whole(train, test, "broken", 8),
    ):
        with pytest.raises(UnsmoothError, match=r"a whole image in .*ant/1\.png but got .*Try replacing that file"):
            load()


def test_folders_that_do_not_do(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match="nowhere but got no such folder"):
        read_image_folder(tmp_path / "nowhere")
    (tmp_path / "train" / "yak").mkdir()
    with pytest.raises(UnsmoothError, match=r"images in .*yak but got an empty folder"):
        read_image_folder(tmp_path / "train")
    picture(4, 4).save(tmp_path / "train" / "yak" / "a.png")
    with pytest.raises(UnsmoothError, match="'yak' in one of them"):
        read_image_folders(tmp_path)
    (tmp_path / "void").mkdir()
    with pytest.raises(UnsmoothError, match="a folder for each class"):
        read_image_folder(tmp_path / "void")
    (tmp_path / "alone" / "train" / "c").mkdir(parents=True)
    picture(4, 4).save(tmp_path / "alone" / "train" / "c" / "a.png")
    with pytest.raises(UnsmoothError, match="val/ or test/ beside train/"):
        read_image_folders(tmp_path / "alone")


def test_small_folders_are_read_whole(folder: Path) -> None:
    train, test = read_image_folders(folder)
    images = read_whole(train, test, "animals", size=12)
    assert images.train_images.shape == (6, 3, 12, 12)
    wanted = Image.open(folder / "train" / "zebra" / "2.png").resize((12, 12), Image.Resampling.BICUBIC)
    numpy.testing.assert_array_equal(images.train_images[5].permute(1, 2, 0).numpy(), numpy.asarray(wanted))
    assert (images.classes, images.name, images.synthetic) == (2, "animals", False)
    with pytest.raises(UnsmoothError, match=r"images of one size, 40 × 30 but got 41 × 30 in .*ant/1\.png"):
        read_whole(train, test, "animals")


def test_the_digest_follows_names_and_sizes(folder: Path) -> None:
    before = read_image_folder(folder / "train").digest
    assert read_image_folder(folder / "train").digest == before
    picture(40, 29).save(folder / "train" / "ant" / "0.png")
    assert read_image_folder(folder / "train").digest != before
