from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.processes import StopError, carry_out, configs, farthest, in_processes, job, losses
from unsmooth.training import Config, RunFolder

SHARED: dict[str, Any] = {"steps": 3, "evaluate_every": 3.0}


def cases() -> dict[str, tuple[Config, Config]]:
    """By name: the run of one process, and that of two which must come to the same."""
    plain, shard = configs(**SHARED), configs(**SHARED, engine__sharding="shard")
    # Two processes take half as many samples at a time each.
    more: dict[str, Any] = {**SHARED, "batch": 16, "ramp": 0.5, "remedies": ("sharpen(layers='0')", "deescalate")}
    more["losses"] = ("cosine(weight=0.5)", "layer_contrast(layer=1)")
    parts, halves = configs(**more, micro_batch=8)["images"], configs(**more, micro_batch=4)["images"]
    shards = configs(**more, micro_batch=4, engine__sharding="shard")["images"]
    return {
        "ddp language": (plain["language"], plain["language"]),
        "fsdp images": (plain["images"], shard["images"]),
        "fsdp masked": (plain["masked"], shard["masked"]),
        "fsdp language": (plain["language"], shard["language"]),
        "ddp remedied": (parts, halves),
        "fsdp remedied": (parts, shards),
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case by one process and by two, and sharded runs that were interrupted."""
    folder = tmp_path_factory.mktemp("processes")
    images, language = cases()["fsdp images"][1], cases()["fsdp language"][1]
    with pytest.raises(StopError):
        carry_out(job(folder / "more", images, stop=2))
    jobs = [job(folder / "two" / name, two) for name, (_, two) in cases().items()]
    jobs += [job(folder / "cut", language, stop=2), job(folder / "cut", None)]
    jobs += [job(folder / "fewer", language, stop=2), job(folder / "more", None)]
    jobs += [job(folder / "poisoned", cases()["ddp remedied"][1], poison=1)]
    jobs += [job(folder / f"full {name}", cases()[name][1], full=True) for name in ("ddp language", "fsdp images")]
    said = in_processes(folder, jobs)
    wrong = [words for words in said[:-3] if set(words) - {"", "stopped"}]
    assert not wrong, wrong
    for name, words in zip(("poison", "full ddp", "full fsdp"), said[-3:], strict=True):
        (folder / f"{name}.txt").write_text("\n".join(words))
    for name in ("ddp language", "fsdp images", "fsdp masked", "ddp remedied"):
        carry_out(job(folder / "one" / name, cases()[name][0]))
    carry_out(job(folder / "fewer", None))
    return folder


def alone(folder: Path, name: str) -> Path:
    """What one process came to."""
    same = {"fsdp language": "ddp language", "fsdp remedied": "ddp remedied"}
    return folder / "one" / same.get(name, name)


@pytest.mark.parametrize("name", list(cases()))
def test_two_processes_come_to_what_one_comes_to(done: Path, name: str) -> None:
    one, two = alone(done, name), done / "two" / name
    assert farthest(one, two) < 1e-9
    assert losses(two) == pytest.approx(losses(one), abs=1e-9)
    assert RunFolder(two).manifest()["processes"] == 2


def test_a_sharded_run_that_was_interrupted(done: Path) -> None:
    kept = sorted(path.name for path in (done / "cut" / "checkpoints").iterdir())
    assert kept == ["index.json", "step-00000002.shards", "step-00000003.shards"]
    assert farthest(done / "cut", done / "two" / "fsdp language") < 1e-12
    assert losses(done / "cut") == pytest.approx(losses(done / "two" / "fsdp language"), abs=1e-12)


def test_shards_of_two_processes_are_read_by_one(done: Path) -> None:
    assert farthest(done / "fewer", alone(done, "fsdp language")) < 1e-9
    assert losses(done / "fewer") == pytest.approx(losses(alone(done, "fsdp language")), abs=1e-9)


def test_the_file_of_one_process_is_read_by_two_that_share(done: Path) -> None:
    assert (done / "more" / "checkpoints" / "step-00000003.shards").is_dir()
    assert farthest(done / "more", alone(done, "fsdp images")) < 1e-9


def test_a_loss_that_is_not_finite_on_one_process_stops_all(done: Path) -> None:
    said = (done / "poison.txt").read_text().splitlines()
    begin = "LossNotFiniteError: Expected a finite loss in step 1 but got NaN or Inf, first in the loss itself"
    assert [words[: len(begin)] for words in said] == [begin, begin]
    assert RunFolder(done / "poisoned").manifest()["state"] == "stopped"


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_full_disk_stops_all(done: Path, way: str) -> None:
    first, second = (done / f"full {way}.txt").read_text().splitlines()
    assert first.startswith("UnsmoothError: Expected room to save step 1 in")
    assert second.startswith("UnsmoothError: Expected ")
    name = {"ddp": "ddp language", "fsdp": "fsdp images"}[way]
    assert not list((done / f"full {name}" / "checkpoints").iterdir())
