"""Which runs belong together, and what they are called."""

from __future__ import annotations

from pathlib import Path

from tests.report.training.fake_runs import loss_at
from unsmooth.report.training.variants import variants_of
from unsmooth.report.training.words import banners_of, sentence_of
from unsmooth.training import TrainedRun, read_run


def run(folder: str = "a", *, seed: int = 0, data: dict | None = None, **config: object) -> TrainedRun:
    settings = {"recipe": "cifar", "size": "base", "seed": seed, "remedies": [], **config}
    found = {"name": "cifar100", "synthetic": False, "digest": "ab", **(data or {})}
    return TrainedRun(Path(folder), config=settings, manifest={"recipe": "cifar", "seed": seed, "data": found})


def named(*runs: TrainedRun) -> list[tuple[str, int]]:
    return [(variant.name, len(variant.runs)) for variant in variants_of(runs)]


def test_runs_that_differ_by_seed_are_one():
    assert named(run(), run("b", seed=1)) == [("cifar", 2)]
    assert named(run(seed=0), run("b", seed=0)) == [("cifar", 2)]
    assert variants_of([run(seed=0), run("b", seed=0)])[0].spread == "2 runs"


def test_anything_else_makes_a_variant_that_is_named_after_it():
    assert named(run(), run("b", remedies=["sharpen", "rezero"])) == [("no remedy", 1), ("sharpen + rezero", 1)]
    assert named(run(optimiser={"lr": 1e-3}), run("b", optimiser={"lr": 3 * 1e-4})) == [
        ("lr=0.001", 1),
        ("lr=0.0003", 1),
    ]
    assert named(run(), run("b", data={"synthetic": True})) == [("real data", 1), ("synthetic data", 1)]
    assert named(run(), run("b", data={"digest": "cd"})) == [("a", 1), ("b", 1)]


def test_synthetic_data_of_other_seeds_is_still_one_variant():
    made = {"synthetic": True}
    assert len(named(run(data=made | {"digest": "x"}), run("b", seed=1, data=made | {"digest": "y"}))) == 1


def test_many_differences_fall_back_on_folders():
    assert named(run("first"), run("second", a=1, b=2, c=3, d=4)) == [("first", 1), ("second", 1)]


def test_runs_that_say_nothing_stay_apart():
    assert named(TrainedRun(Path("x")), TrainedRun(Path("y"))) == [("x", 1), ("y", 1)]


def test_eight_variants_have_eight_colours():
    colours = [variant.colour for variant in variants_of([run(str(rate), batch=rate) for rate in range(8)])]
    assert len(set(colours)) == 8


def test_synthetic_data_and_the_reason_of_a_stop_are_said():
    made = run(data={"synthetic": True})
    stopped = TrainedRun(made.folder, made.config, {**made.manifest, "state": "stopped", "reason": "loss not finite"})
    variant = variants_of([stopped])[0]
    assert [word for word, _ in banners_of(variant)] == ["Synthetic data.", "Stopped."]
    assert banners_of(variant)[1][1] == "a stopped before its end. Reason: loss not finite."
    assert sentence_of(variant) == "cifar, trained on synthetic data (cifar100): no evaluation was logged."


def test_sentence_tells_result_and_change(run_folders):
    assert sentence_of(variants_of([read_run(run_folders["one"])])[0]) == (
        "vit_cifar (tiny), trained on cifar100 for 4 epochs (400 steps) reaches accuracy 0.5891 and "
        f"evaluation loss {loss_at(400, lift=0.2):.4g}. The mean_cosine of the tokens that leave the last layer went "
        "from 0.08 before training to 0.7 at the end."
    )
