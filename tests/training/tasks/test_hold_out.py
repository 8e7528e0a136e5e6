"""A share of the training samples in place of the test set: none of it is learned from, and nothing is lost."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image

from tests.training.tasks.building import built, language_config, loss_at, masked_config, network_of
from tests.training.tasks.test_superglue import glue_config, write
from tests.training.test_step import Regression
from tests.training.tiny_runs import assert_same_run, tiny
from unsmooth.errors import UnsmoothError
from unsmooth.training import Config, resume, train
from unsmooth.training.data.hold_out import split_by_class
from unsmooth.training.tasks import windows

UNEVEN = torch.tensor([0] * 40 + [1] * 20 + [3] * 11)[torch.randperm(71, generator=torch.Generator().manual_seed(5))]


def with_data(config: Config, **changes: Any) -> Config:
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **changes))


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
def test_both_parts_are_all_samples_and_every_class_gives_its_share(share: float) -> None:
    learned, held = split_by_class(UNEVEN, share)
    assert sorted([*learned.tolist(), *held.tolist()]) == list(range(71))
    for part in (learned, held):
        assert part.tolist() == sorted(part.tolist())
    counts = {label: int((UNEVEN[held] == label).sum()) for label in (0, 1, 3)}
    assert counts == {label: int(share * size + 0.5) for label, size in ((0, 40), (1, 20), (3, 11))}


def test_more_are_held_out_in_addition_and_no_part_of_a_class_is_preferred() -> None:
    labels = torch.arange(4000) % 4
    few, many = (set(split_by_class(labels, share)[1].tolist()) for share in (0.1, 0.2))
    assert few < many
    # Of 400 places, drawn at random, 200 ± 10 lie in the first half.
    assert abs(sum(place < 2000 for place in few) - 200) < 40


def pixels(images: torch.Tensor) -> Counter[bytes]:
    return Counter(image.numpy().tobytes() for image in images)


def test_images_held_out_are_those_of_the_training_set_that_are_not_learned_from() -> None:
    whole = built(tiny()).source.images  # type: ignore[attr-defined]
    parts = built(tiny(data__hold_out=0.25)).source.images  # type: ignore[attr-defined]
    assert pixels(parts.train_images) + pixels(parts.test_images) == pixels(whole.train_images)
    assert not pixels(parts.test_images) & pixels(parts.train_images)
    assert not pixels(parts.test_images) & pixels(whole.test_images)
    assert parts.train_labels.bincount().tolist() == [4] * 4  # of six each, one and a half rounded
    assert parts.test_labels.bincount().tolist() == [2] * 4
    by_pixels = dict(zip(pixels(whole.train_images), whole.train_labels.tolist(), strict=True))
    assert [by_pixels[image.numpy().tobytes()] for image in parts.test_images] == parts.test_labels.tolist()


def test_every_seed_holds_the_same_out() -> None:
    first, other = (built(tiny(data__hold_out=0.25, seed=seed)).source for seed in (0, 7))  # type: ignore[attr-defined]
    assert torch.equal(first.images.test_images, other.images.test_images)
    assert torch.equal(first.images.train_images, other.images.train_images)


def test_limits_of_training_come_first_and_those_of_testing_last() -> None:
    limited = built(tiny(data__train_limit=16, data__test_limit=4, data__hold_out=0.5))
    source = limited.source  # type: ignore[attr-defined]
    assert len(source.images.train_images) == 8
    assert sorted(source.test(torch.arange(source.tests))[1].tolist()) == [0, 1, 2, 3]
    assert limited.describe() | {"train": 8, "test": 4, "hold_out": 0.5} == limited.describe()
    whole = built(tiny(data__train_limit=16)).source.images  # type: ignore[attr-defined]
    assert not pixels(source.images.test_images) - pixels(whole.train_images)


@pytest.fixture
def folder(workplace: Path) -> Path:
    random = numpy.random.default_rng(0)
    for split, count in (("train", 6), ("val", 2)):
        for label in range(4):
            place = workplace / "pictures" / split / f"class{label}"
            place.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(random.integers(0, 256, (12, 14, 3), dtype=numpy.uint8)).save(place / f"{number}.png")
    return workplace / "pictures"


def test_files_are_held_out_as_images_in_memory_are(folder: Path) -> None:
    config = tiny(task="image_files", data__path=str(folder), data__train_limit=None, data__test_limit=None)
    task = built(with_data(config, hold_out=0.25))
    source = task.source  # type: ignore[attr-defined]
    names = {path.relative_to(folder / "train").as_posix() for path in (folder / "train").rglob("*.png")}
    assert set(source.train.files) | set(source.test_files.files) == names
    assert not set(source.train.files) & set(source.test_files.files)
    assert source.test_files.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    images, _ = source.test(torch.tensor([0]))
    assert torch.equal(images[0], source.test_files.load_eval(0, size=8))
    assert task.describe() | {"train": 16, "test": 8, "hold_out": 0.25} == task.describe()
    places = [f"class{label}/{number}.png" for label in range(4) for number in range(6)]
    held = [places.index(name) for name in source.test_files.files]
    assert torch.equal(torch.tensor(held), split_by_class(torch.arange(24) // 6, 0.25)[1])


@pytest.mark.parametrize("make", [masked_config, language_config])
@pytest.mark.parametrize("limit", [None, 40])
def test_the_end_of_a_training_text_is_held_out(text: Path, make: Any, limit: int | None) -> None:
    whole = built(make(text)).text  # type: ignore[attr-defined]
    task = built(with_data(make(text), hold_out=0.2, train_limit=limit))
    used = whole.train[:] if limit is None else whole.train[: limit * task.length + 1]  # type: ignore[attr-defined]
    parts = task.text  # type: ignore[attr-defined]
    assert torch.equal(torch.cat([parts.train[:], parts.valid[:]]), used)
    assert len(parts.valid) == int(0.2 * len(used) + 0.5)
    starts = torch.cat([task.windows.starts.take(torch.tensor(batch)) for batch in _begun(task)])  # type: ignore[attr-defined]
    assert int(starts.max()) + task.length < len(parts.train) + 1  # type: ignore[attr-defined]
    assert task.describe() | {"train": len(parts.train), "test": len(parts.valid), "hold_out": 0.2} == task.describe()
    asked = torch.cat([part["input_ids"].flatten() for part in task.probe(100)])
    assert torch.equal(asked, parts.valid[: len(asked)])


def _begun(task: Any) -> Any:
    for batch in range(task.batches):
        task.begin(batch)
        yield batch


def test_a_text_that_stays_on_disk_is_cut_at_the_same_place(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = with_data(language_config(text), hold_out=0.2)
    resident = built(config)
    monkeypatch.setattr(windows, "RESIDENT", 0)
    streamed = built(config)
    model = network_of(resident)
    for batch in range(resident.batches + 1):
        assert torch.equal(loss_at(resident, model, batch), loss_at(streamed, model, batch))


@pytest.fixture
def glue(workplace: Path) -> Path:
    home = workplace / "superglue"
    labels = ("entailment", "contradiction", "neutral")
    rows = [{"premise": f"p{i}", "hypothesis": "h", "label": labels[i % 3]} for i in range(60)]
    asked = [
        {"idx": q, "question": f"q{q}", "answers": [{"idx": a, "text": f"a{a}", "label": a} for a in (0, 1)]}
        for q in (0, 1)
    ]
    passages = [{"idx": i, "passage": {"text": f"passage {i}", "questions": asked}} for i in range(10)]
    pairs = [{"premise": "a", "hypothesis": "b", "label": ("entailment", "not_entailment")[i % 2]} for i in range(20)]
    for split in ("train", "val"):
        write(home / "CB" / f"{split}.jsonl", rows)
        write(home / "MultiRC" / f"{split}.jsonl", passages)
        write(home / "RTE" / f"{split}.jsonl", pairs)
    write(home / "AX-b" / "AX-b.jsonl", [{"sentence1": "a", "sentence2": "b", "label": "entailment"}])
    return home


def test_examples_are_held_out_of_each_label_and_answers_with_their_passage(glue: Path) -> None:
    task = built(with_data(glue_config(glue, "cb"), hold_out=0.2))
    learned, held = task.train, task.test  # type: ignore[attr-defined]
    assert Counter(one.label for one in held) == {0: 4, 1: 4, 2: 4}
    assert {one.texts for one in learned} | {one.texts for one in held} == {((f"p{i}", "h"),) for i in range(60)}
    assert len(learned) + len(held) == 60
    assert task.describe()["hold_out"] == 0.2
    task = built(with_data(glue_config(glue, "multirc"), hold_out=0.2))
    learned, held = task.train, task.test  # type: ignore[attr-defined]
    assert (len(learned), len(held)) == (32, 8)
    assert not {one.texts[0][0] for one in learned} & {one.texts[0][0] for one in held}


def test_what_cannot_hold_samples_out_says_so(glue: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"Expected a task with training examples of its own but got AX-b, which"):
        built(with_data(glue_config(glue, "axb"), hold_out=0.2))
    with pytest.raises(UnsmoothError, match=r"Expected a task that can hold samples out but got 'regression', which"):
        Regression(tiny(data__hold_out=0.25), 4)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_is_from_0_to_below_1(share: float) -> None:
    with pytest.raises(UnsmoothError, match=r"Expected data\.hold_out from 0 to below 1, .* Try --set data\.hold_out="):
        tiny(data__hold_out=share)


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.05, "hold-out of 0.05 but got 6 of class 0, none of them to evaluate on. Try another share"),
        (0.95, "hold-out of 0.95 but got 6 of class 0, none of them to learn from. Try another share"),
    ],
)
def test_a_share_that_leaves_a_class_with_nothing_is_refused(share: float, said: str) -> None:
    with pytest.raises(UnsmoothError, match=said) as caught:
        built(tiny(data__hold_out=share))
    assert "\n" not in str(caught.value)


def test_a_share_in_which_no_sequence_fits_is_refused(text: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"Expected 9 tokens on both sides of a hold-out of 0\.001 but got 3596 to"):
        built(with_data(language_config(text), hold_out=0.001))


def test_a_run_that_holds_out_goes_on_to_the_same_bits_and_says_what_it_held_out(tmp_path: Path) -> None:
    config = tiny(data__hold_out=0.25, steps=4)
    (whole,) = train(config, tmp_path / "whole")
    (cut,) = train(config, tmp_path / "cut", minutes=0.0)
    assert not cut.finished
    resume(cut.path)
    assert_same_run(whole.path, cut.path)
    assert whole.manifest()["data"] == {
        "name": "synthetic",
        "synthetic": True,
        "digest": "synthetic-images-4-24-8-8-0",
        "train": 16,
        "test": 8,
        "classes": 4,
        "hold_out": 0.25,
    }


def test_without_a_hold_out_nothing_is_said_and_an_older_run_goes_on(tmp_path: Path) -> None:
    config = tiny(steps=2)
    (whole,) = train(config, tmp_path / "whole")
    data = {"name": "synthetic", "synthetic": True, "digest": "synthetic-images-4-24-8-8-0"}
    assert whole.manifest()["data"] == {**data, "train": 24, "test": 8, "classes": 4}
    (older,) = train(config, tmp_path / "older", minutes=0.0)
    settings = json.loads((older.path / "config.json").read_text())
    assert settings["data"].pop("hold_out") == 0.0
    (older.path / "config.json").write_text(json.dumps(settings))
    resume(older.path, config=config)
    assert_same_run(whole.path, older.path)
