"""An arena in one go, in pieces, killed, shared: the same numbers, and nothing done twice."""

from __future__ import annotations

import errno
import json
import math
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.arena.tiny_arenas import POST, PRE, carried_out, outcome, plan, results, smallest
from tests.training.killing import KilledError, killed_at
from unsmooth.arena import ArenaFolder, Budget, Entrant, Plan, Standing, carry_out_arena, standings
from unsmooth.arena.results import Choice, chosen, left_over, rate_run, seed_run, wanted_runs
from unsmooth.errors import UnsmoothError
from unsmooth.executing import HeldError, held
from unsmooth.stopping import Deadline
from unsmooth.training.place import take_place
from unsmooth.training.run import Run
from unsmooth.training.stopwatch import Stopwatch

Lines = dict[tuple[str, str], Standing]


@pytest.fixture(scope="module")
def wanted() -> Plan:
    """`deepnorm` refuses pre-norm models."""
    return plan("deescalate", "deepnorm", grid=["norm=pre,post"])


@pytest.fixture(scope="module")
def whole(wanted: Plan, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Lines, list[str]]:
    """The arena in one go."""
    path = tmp_path_factory.mktemp("arena")
    return path, *carried_out(wanted, path)


def of(path: Path, file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "results" / file).read_text())
    return found


def scored_as(whole: tuple[Path, Lines, list[str]], seed: int) -> str:
    """What the run of a seed with `deescalate` on the pre-norm model is called."""
    choice = whole[1][PRE, "deescalate"].choice
    assert choice is not None
    return seed_run(seed, choice.rate)


def test_every_entrant_is_trained_at_both_rates_and_scored_at_the_better(whole: tuple[Path, Lines, list[str]]) -> None:
    path, lines, moved = whole
    assert len(moved) == 5 * 4
    for line in [one for one in lines.values() if not one.failures]:
        place = line.entrant.place
        by_rate = {rate: of(path, f"{place}/rate-{rate}.json")["evaluations"][-1]["accuracy"] for rate in (0.001, 0.01)}
        assert line.choice is not None
        assert line.choice.rate == (0.01 if by_rate[0.01] > by_rate[0.001] else 0.001)
        assert line.choice.edge
        seeds = [of(path, f"{place}/seed-{seed}-rate-{line.choice.rate:g}.json") for seed in (0, 1)]
        assert [run["config"]["optimiser"]["lr"] for run in seeds] == [line.choice.rate] * 2
        assert line.score is not None
        assert line.score.value == pytest.approx(fmean(run["evaluations"][-1]["accuracy"] for run in seeds))
        assert [run["made"]["steps"] for run in seeds] == [3, 3]


def test_rates_are_chosen_on_samples_held_out_and_scores_are_of_the_test_set(
    whole: tuple[Path, Lines, list[str]],
) -> None:
    path = whole[0]
    probe, scored = (of(path, f"norm-pre/deescalate/{run}.json") for run in ("rate-0.001", scored_as(whole, 0)))
    data = {"name": "synthetic", "synthetic": True, "digest": "synthetic-images-4-24-8-8-0", "classes": 4}
    assert probe["made"]["data"] == {**data, "train": 20, "test": 4, "hold_out": 0.1}  # one of six in each class
    assert scored["made"]["data"] == {**data, "train": 24, "test": 8}
    assert (probe["config"]["data"]["hold_out"], scored["config"]["data"]["hold_out"]) == (0.1, 0.0)


def test_with_fewer_samples_a_probe_makes_as_many_steps(tmp_path: Path) -> None:
    base = smallest(steps=None, epochs=1.0, checkpoint_every=1.0)  # 3 batches of 8 in 24 images, 2 in 20
    carried_out(plan(base=base, seeds=1), tmp_path)
    runs = [json.loads(file.read_text()) for file in (tmp_path / "results/vit_cifar100/plain").glob("*-*.json")]
    assert [run["made"]["steps"] for run in runs] == [3, 3, 3]
    assert [len(run["evaluations"]) for run in runs] == [1, 1, 1]


def test_results_that_know_no_hold_out_go_on_on_the_test_set(tmp_path: Path) -> None:
    before = plan(seeds=1, hold_out=0.0)
    carried_out(before, tmp_path)
    for file in (tmp_path / "results").rglob("*.json"):
        content = json.loads(file.read_text())
        content.get("config", content.get("settings", {})).get("data", {}).pop("hold_out", None)
        file.write_text(json.dumps(content))
    assert carried_out(before, tmp_path)[1] == []
    with pytest.raises(UnsmoothError, match=r"\(data\.hold_out\)\. Try --hold-out 0 as then, another --out"):
        carry_out_arena(plan(seeds=1), ArenaFolder(tmp_path))


def test_a_share_that_the_data_do_not_allow_is_told_before_anything_is_timed(tmp_path: Path) -> None:
    folder = ArenaFolder(tmp_path)
    with pytest.raises(
        UnsmoothError, match=r"a hold-out of 0\.01 but got 6 of class 0.*another --hold-out, or --hold-out 0"
    ):
        carry_out_arena(plan(hold_out=0.01), folder)
    assert folder.model("vit_cifar100") is None
    carry_out_arena(plan(hold_out=0.01, seeds=1, rates=(1e-3,)), folder)  # nothing is chosen
    with pytest.raises(UnsmoothError, match=r"In an arena: another --hold-out, or --hold-out 0\."):
        carry_out_arena(plan(hold_out=0.01), folder)
    assert folder.trouble(Entrant("vit_cifar100", "deescalate")) is None


def test_similarity_is_that_of_the_scored_runs_at_start_and_end(whole: tuple[Path, Lines, list[str]]) -> None:
    path, lines, _ = whole
    line = lines[PRE, "deescalate"]
    measured = [
        of(path, f"norm-pre/deescalate/{scored_as(whole, seed)}.json")["similarity"]["mean_cosine"] for seed in (0, 1)
    ]
    for curve, moment in ((line.start, 0), (line.end, -1)):
        layers = [moments[moment]["layers"] for moments in measured]
        assert [one.value for one in curve] == pytest.approx([fmean(seeds) for seeds in zip(*layers, strict=True)])
    assert of(path, "norm-pre/deescalate/rate-0.001.json")["similarity"] == {}


def test_a_remedy_that_a_model_refuses_is_told_with_the_reason(whole: tuple[Path, Lines, list[str]]) -> None:
    _, lines, moved = whole
    assert "norms before the branches" in lines[PRE, "deepnorm"].failures[0]
    assert lines[PRE, "deepnorm"].failures[0].startswith("refused: ")
    assert lines[POST, "deepnorm"].failures == ()
    assert lines[POST, "deepnorm"].difference is not None
    assert not any(name.startswith("norm-pre/deepnorm") for name in moved)


def test_cost_is_told_beside_the_plain_model(whole: tuple[Path, Lines, list[str]]) -> None:
    plain, remedied = (whole[1][PRE, remedy].timing for remedy in ("plain", "deescalate"))
    assert plain is not None
    assert remedied is not None
    assert plain.ratio == 1.0
    assert remedied.ratio > 0
    assert remedied.memory is None  # on a CPU
    assert math.isfinite(remedied.seconds)


def test_steps_of_a_growing_batch_are_timed_at_its_full_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    move = Run.move
    monkeypatch.setattr(Run, "move", lambda run: (passes.append(run.table.passes_of(run.step)), move(run))[1])
    with take_place("cpu") as place:
        Stopwatch(smallest(micro_batch=2, ramp=1.0), place).plain()
    assert set(passes) == {4}


def test_what_is_done_is_not_done_again(wanted: Plan, whole: tuple[Path, Lines, list[str]]) -> None:
    before = results(whole[0])
    lines, moved = carried_out(wanted, whole[0])
    assert moved == []
    assert results(whole[0]) == before
    assert lines == whole[1]
    more = plan("deescalate", grid=["norm=pre"], seeds=3)
    _, moved = carried_out(more, whole[0])
    assert [name.partition("-rate")[0] for name in moved] == ["norm-pre/plain/seed-2", "norm-pre/deescalate/seed-2"]


def test_weights_are_kept_of_scored_runs_alone(whole: tuple[Path, Lines, list[str]]) -> None:
    runs = whole[0] / "runs/norm-pre/deescalate"
    assert (runs / scored_as(whole, 0) / "final").is_dir()
    assert not (runs / "rate-0.001/final").exists()
    assert not any(runs.glob("*/checkpoints"))


def test_what_a_killed_process_left_of_a_run_that_is_over_is_removed(
    wanted: Plan, whole: tuple[Path, Lines, list[str]]
) -> None:
    left = [whole[0] / "runs/norm-pre/deescalate" / run / "checkpoints" for run in ("rate-0.001", scored_as(whole, 1))]
    for folder in left:
        folder.mkdir()
    _, moved = carried_out(wanted, whole[0], deadline=Deadline(0.0))
    assert moved == []
    assert not any(folder.exists() for folder in left)


def test_other_settings_are_refused(whole: tuple[Path, Lines, list[str]]) -> None:
    for other, said in (
        (plan(grid=["norm=pre"], base=smallest(batch=4)), r"results of norm=pre with the settings of now .*\(batch\)"),
        (plan(grid=["norm=pre"], budget=Budget.read("2steps")), "budget None, now 2steps"),
        (plan(grid=["norm=pre"], probe=0.5), r"others for norm-pre/plain/rate-0.001 \(steps"),
        (plan(grid=["norm=pre"], hold_out=0.0), r"\(data\.hold_out\)\. Try --hold-out 0\.1 as then, another --out"),
    ):
        with pytest.raises(UnsmoothError, match=said):
            carry_out_arena(other, ArenaFolder(whole[0]))


def test_in_pieces_it_is_the_same(whole: tuple[Path, Lines, list[str]], tmp_path: Path) -> None:
    part, folder = plan("deescalate", grid=["norm=pre"]), ArenaFolder(tmp_path)
    carry_out_arena(part, folder, deadline=Deadline(0.0))
    assert len(left_over(part, folder, "")) == 2
    carry_out_arena(part, folder, deadline=Deadline(0.06))
    carry_out_arena(part, folder)
    assert left_over(part, folder, "") == []
    in_one_go = results(whole[0])
    assert results(tmp_path) == {
        name: value for name, value in in_one_go.items() if "norm-pre" in name and "seed-2" not in name
    }


def test_killed_anywhere_nothing_is_lost(tmp_path: Path) -> None:
    small = plan(rates=(1e-3,), seeds=1)
    with killed_at(0, tmp_path / "whole") as touched:
        carry_out_arena(small, ArenaFolder(tmp_path / "whole"))
    for number, share in enumerate((0.3, 0.7)):
        folder = ArenaFolder(tmp_path / f"killed-{number}")
        with suppress(KilledError), killed_at(round(share * len(touched)), folder.path):
            carry_out_arena(small, folder)
        done = {name for name in results(folder.path) if "seed-0" in name}
        _, moved = carried_out(small, folder.path)
        assert results(folder.path) == results(tmp_path / "whole")
        assert not [name for name in moved if f"results/{name}.json" in done]


def test_two_commands_on_one_arena_are_refused_and_the_second_leaves_nothing(tmp_path: Path) -> None:
    with held(tmp_path, "x"), pytest.raises(HeldError, match=r"no other command fills .* got one under way, by"):
        carry_out_arena(plan(), ArenaFolder(tmp_path))
    assert not (tmp_path / "results").exists()


def test_what_is_ahead_is_told_before_it_begins(tmp_path: Path) -> None:
    said, folder, small = list[str](), ArenaFolder(tmp_path), plan(seeds=1, widen=1)
    carry_out_arena(small, folder, announce=said.append, tell=lambda _: said.append(""))
    assert said[0].startswith("6 runs or more, at least ")
    assert not any(said[1:])
    del said[:]
    carry_out_arena(small, folder, announce=said.append)
    assert said == []  # nothing is left
    carry_out_arena(plan(seeds=2, widen=1), folder, announce=said.append)
    assert said[0].startswith("2 runs, about ")


def test_a_rate_that_breaks_a_model_is_no_choice_and_one_that_always_breaks_is_a_failure(tmp_path: Path) -> None:
    base = smallest(schedule__warmup=0, optimiser__clip=0.0)
    lines, _ = carried_out(plan(base=base, rates=(1e-3, 1e30), seeds=1), tmp_path / "some")
    choice = lines["vit_cifar100", "plain"].choice
    assert choice is not None
    assert (choice.rate, choice.lost, choice.scores[1e30]) == (1e-3, False, 0.25)
    lines, moved = carried_out(plan(base=base, rates=(1e29, 1e30), seeds=2), tmp_path / "all")
    lost = lines["vit_cifar100", "plain"]
    assert not any("seed" in name for name in moved)
    assert lost.done
    assert lost.scores == {0: 0.25, 1: 0.25}  # guessing among four classes
    assert lost.failures[0].startswith("no finite loss at any rate: loss not finite in step")


def test_a_budget_of_time_is_settled_once_for_all_remedies(tmp_path: Path) -> None:
    small = plan(rates=(1e-3,), seeds=1, budget=Budget.read("0.02s"))
    folder = ArenaFolder(tmp_path)
    carry_out_arena(small, folder)
    settled = folder.model("vit_cifar100")
    assert settled is not None
    assert settled["steps"] == max(1, math.floor(0.02 / settled["seconds_of_a_step"]))
    made = [of(tmp_path, f"vit_cifar100/{remedy}/seed-0-rate-0.001.json")["made"]["steps"] for remedy in small.remedies]
    assert made == [settled["steps"]] * 2
    assert carried_out(plan(rates=(1e-3,), seeds=1, budget=Budget.read("0.020 s")), tmp_path)[1] == []


def test_a_full_disk_ends_the_arena_and_is_no_failure_of_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, folder = plan("deescalate", "sharpen", rates=(1e-3,), seeds=1), ArenaFolder(tmp_path)
    carry_out_arena(plan("sharpen", rates=(1e-3,), seeds=1), folder)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("unsmooth.training.checkpoint._check_space", full)
        with pytest.raises(UnsmoothError, match="No space left on device"):
            carry_out_arena(small, folder, call="first")
    assert [line.failures for line in standings(small, folder).lines] == [(), (), ()]
    carry_out_arena(small, folder, call="second")
    assert all(line.done for line in standings(small, folder).lines)


def test_a_remedy_that_fails_is_told_and_tried_again_by_another_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, folder = plan(rates=(1e-3,), seeds=1), ArenaFolder(tmp_path)

    def broken(*_: Any) -> None:
        raise RuntimeError("no kernel\nfor this")

    with monkeypatch.context() as patched:
        patched.setattr("unsmooth.training.stopwatch.Stopwatch.beside", broken)
        carry_out_arena(small, folder, call="first")
    assert standings(small, folder).lines[1].failures == ("failed: RuntimeError: no kernel for this",)
    carry_out_arena(small, folder, call="first")
    assert not standings(small, folder).lines[1].done
    carry_out_arena(small, folder, call="second")
    assert standings(small, folder).lines[1].done
    assert standings(small, folder).lines[1].failures == ()


def test_a_broken_result_is_told(tmp_path: Path) -> None:
    small, folder = plan(rates=(1e-3,), seeds=1), ArenaFolder(tmp_path)
    place = folder.results(Entrant("vit_cifar100", "plain"))
    place.mkdir(parents=True)
    (place / "seed-0-rate-0.001.json").write_text('{"format": 1, "variant"')
    with pytest.raises(UnsmoothError, match=r"Expected JSON in .*seed-0-rate-0.001.json' but got .*\. Try "):
        carry_out_arena(small, folder)


def change(path: Path, **content: Any) -> None:
    """Another content of a result."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **content}))


def judged(path: Path, **accuracies: float) -> None:
    """Have runs that chose a rate for the plain model say that it reached so much; without its dot, as rate_0001."""
    for name, accuracy in accuracies.items():
        file = path / "results/vit_cifar100/plain" / f"{name.replace('_', '-0.')}.json"
        change(file, evaluations=[{"loss": 1.0, "accuracy": accuracy}])


def test_a_rate_that_joins_the_grid_and_is_chosen_has_scores_of_its_own(tmp_path: Path) -> None:
    before, more = (plan(seeds=1, rates=rates) for rates in ((1e-3, 1e-2), (1e-3, 1e-2, 2e-2)))
    carried_out(before, tmp_path)
    folder, then = ArenaFolder(tmp_path), results(tmp_path)
    line = standings(more, folder).lines[0]  # while nobody knows whether the new rate is the better one
    assert (line.choice, line.scores, line.done) == (None, {}, False)
    judged(tmp_path, rate_001=-1.0, rate_01=-1.0)
    lines, moved = carried_out(more, tmp_path)
    assert moved[:2] == ["vit_cifar100/plain/rate-0.02", "vit_cifar100/plain/seed-0-rate-0.02"]
    line = lines["vit_cifar100", "plain"]
    assert line.choice is not None
    assert (line.choice.rate, line.done) == (2e-2, True)
    assert then.keys() < results(tmp_path).keys()  # what was scored before is still there
    judged(tmp_path, rate_001=3.0)
    assert standings(before, folder).lines[0].choice == replace(line.choice, rate=1e-3, scores={1e-3: 3.0, 1e-2: -1.0})


def test_a_rate_that_joins_the_grid_and_is_not_chosen_keeps_the_scores(tmp_path: Path) -> None:
    carried_out(plan(seeds=1), tmp_path)
    for file in tmp_path.glob("results/*/*/rate-*.json"):
        best = any(file.parent.glob(f"seed-0-{file.name}"))
        change(file, evaluations=[{"loss": 0.0, "accuracy": 3.0 if best else 2.0}])
    lines, moved = carried_out(plan(seeds=1, rates=(1e-3, 1e-2, 2e-2)), tmp_path)
    assert moved == ["vit_cifar100/plain/rate-0.02", "vit_cifar100/deescalate/rate-0.02"]
    assert all(line.done for line in lines.values())


def test_beyond_an_end_at_which_the_best_rate_lies_more_are_tried(tmp_path: Path) -> None:
    folder, entrant = ArenaFolder(tmp_path), Entrant("vit_cifar100", "plain")

    def scoring(accuracies: dict[float, float], widen: int) -> Choice | None:
        for rate, accuracy in accuracies.items():
            folder.write_outcome(entrant, rate_run(rate), outcome("plain", 100, accuracy, rate=rate))
        return chosen(plan(rates=(1e-3, 2e-3, 4e-3), widen=widen), folder, entrant)

    inside = scoring({1e-3: 0.1, 2e-3: 0.3, 4e-3: 0.2}, 2)
    assert inside == Choice(2e-3, scores={1e-3: 0.1, 2e-3: 0.3, 4e-3: 0.2})
    assert scoring({2e-3: 0.15}, 0) == Choice(4e-3, edge=True, scores={1e-3: 0.1, 2e-3: 0.15, 4e-3: 0.2})
    assert scoring({}, 2) is None
    assert list(wanted_runs(plan(rates=(1e-3, 2e-3, 4e-3), widen=2), folder, entrant))[-1] == "rate-0.008"
    assert scoring({8e-3: 0.1}, 2) == Choice(4e-3, scores={1e-3: 0.1, 2e-3: 0.15, 4e-3: 0.2, 8e-3: 0.1})
    assert scoring({8e-3: 0.4}, 2) is None
    ended = scoring({16e-3: 0.5, 32e-3: 0.6}, 2)  # of which the last is one too many
    assert ended is not None
    assert (ended.rate, ended.edge, list(ended.scores)) == (16e-3, True, [1e-3, 2e-3, 4e-3, 8e-3, 16e-3])
    assert scoring({1e-3: 0.9}, 1) is None  # downwards: a grid that is there may be widened at either end
    assert scoring({5e-4: 0.8}, 1) == Choice(1e-3, scores={5e-4: 0.8, 1e-3: 0.9, 2e-3: 0.15, 4e-3: 0.2})


def test_rates_beyond_the_grid_are_trained_before_anything_is_scored(tmp_path: Path) -> None:
    lines, moved = carried_out(plan(seeds=1, widen=1), tmp_path)
    for remedy in ("plain", "deescalate"):
        choice = lines["vit_cifar100", remedy].choice
        assert choice is not None
        assert len(choice.scores) == 3
        own = [name.rpartition("/")[2] for name in moved if f"/{remedy}/" in name]
        first = max if choice.scores[1e-2] > choice.scores[1e-3] else min
        assert own == [*map(rate_run, (1e-3, 1e-2)), rate_run(first(choice.scores)), seed_run(0, choice.rate)]
    assert carried_out(plan(seeds=1, widen=1), tmp_path)[1] == []


def test_a_single_rate_that_was_chosen_among_several_keeps_the_scores(tmp_path: Path) -> None:
    carried_out(plan(seeds=1, rates=(1e-3, 1e30)), tmp_path)
    lines, moved = carried_out(plan(seeds=1, rates=(1e-3,)), tmp_path)
    assert moved == []
    assert all(line.done for line in lines.values())


def learned_from(path: Path, data: dict[str, Any] | None, pattern: str = "*/*/*-*.json") -> None:
    """Have results say that they are of other data, or nothing about them."""
    for file in (path / "results").glob(pattern):
        made = json.loads(file.read_text())["made"]
        change(file, made={**made, "data": data and {**made["data"], **data}})


def test_results_on_other_data_are_not_compared(tmp_path: Path) -> None:
    before, more, folder = plan(seeds=1), plan("deescalate", "sharpen", seeds=1), ArenaFolder(tmp_path)
    carried_out(before, tmp_path)
    real = {"name": "cifar100", "synthetic": False, "digest": "6d2a"}
    learned_from(tmp_path, real, "*/plain/*-*.json")
    told = r"Expected all results of vit_cifar100 on the same data but got cifar100 6d2a for vit_cifar100/plain/rate"
    with pytest.raises(UnsmoothError, match=told):
        carry_out_arena(before, folder)
    assert [one["digest"] for one in standings(before, folder).made["data"]][::2] == [
        "6d2a",
        "synthetic-images-4-24-8-8-0",
    ]
    learned_from(tmp_path, real)
    assert carried_out(before, tmp_path)[1] == []  # nothing is left for which data would be needed
    heard = list[str]()
    with pytest.raises(
        UnsmoothError, match=r"data of now \(made-up data synthetic-.*got cifar100 6d2a .*the --data of then"
    ):
        carry_out_arena(more, folder, tell=lambda progress: heard.append(progress.name))
    assert heard == []
    assert folder.trouble(Entrant("vit_cifar100", "sharpen")) is None
    learned_from(tmp_path, real, "*/*/seed-0-*.json")
    for file in tmp_path.glob("results/*/*/rate-*.json"):
        file.unlink()
    with pytest.raises(UnsmoothError, match="data of now"):  # where only scored runs tell
        carry_out_arena(plan("deescalate", "sharpen", seeds=1), folder)


def test_results_that_say_nothing_about_their_data_go_on(tmp_path: Path) -> None:
    carried_out(plan(seeds=1), tmp_path)
    learned_from(tmp_path, None)
    lines, moved = carried_out(plan("deescalate", "sharpen", seeds=1), tmp_path)
    assert {name.split("/")[1] for name in moved} == {"sharpen"}
    assert all(line.done for line in lines.values())


def test_the_hint_of_a_refusal_can_be_followed(tmp_path: Path) -> None:
    folder, other = ArenaFolder(tmp_path), plan(seeds=1, base=smallest(batch=4))
    carried_out(plan(seeds=1), tmp_path)
    removing = re.escape(f"another --out, or removing {tmp_path / 'results'} and {tmp_path / 'runs'}.")
    with pytest.raises(UnsmoothError, match=removing):
        carry_out_arena(other, folder)
    shutil.rmtree(tmp_path / "results")
    told = (
        r"a run with the settings of now in .*/runs/vit_cifar100/plain/rate-0\.001 but got one with others \(batch\)\. "
    )
    with pytest.raises(UnsmoothError, match=f"{told}Try the settings of then, removing .*/rate-0.001, {removing}"):
        carry_out_arena(other, folder)
    shutil.rmtree(tmp_path / "results")
    shutil.rmtree(tmp_path / "runs")
    carry_out_arena(other, folder)
    assert left_over(other, folder, "") == []


def test_a_run_of_a_remedy_that_was_begun_otherwise_is_no_failure_of_the_remedy(tmp_path: Path) -> None:
    small, folder = plan(seeds=1, rates=(1e-3,)), ArenaFolder(tmp_path)
    carried_out(small, tmp_path)
    (tmp_path / "results/vit_cifar100/deescalate/seed-0-rate-0.001.json").unlink()
    begun = folder.runs / "vit_cifar100/deescalate/seed-0-rate-0.001/config.json"
    change(begun, batch=4)
    with pytest.raises(UnsmoothError, match=r"others \(batch\)"):
        carry_out_arena(small, folder)
    assert folder.trouble(Entrant("vit_cifar100", "deescalate")) is None


def test_a_refusal_is_an_outcome_whoever_found_it_and_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, folder = plan("deescalate", "deepnorm", rates=(1e-3,), seeds=1), ArenaFolder(tmp_path)
    carry_out_arena(small, folder, call="first")
    refused = Entrant("vit_cifar100", "deepnorm")
    folder.write_trouble(refused, "refused", "words of another version", "of another command")
    assert left_over(small, folder, "first") == []
    carry_out_arena(small, folder, call="second", deadline=Deadline(0.0))
    assert left_over(small, folder, "second") == []
    known = folder.trouble(refused)
    assert known is not None
    assert known["reason"].startswith("deepnorm cannot be applied to")
    folder.write_trouble(refused, "failed", "of memory", "of another command")
    assert left_over(small, folder, "first") == [refused]
    folder.write_trouble(refused, "refused", "as it was", "first")
    with monkeypatch.context() as patched:
        patched.setattr("unsmooth.arena.run.refusal", lambda *_: None)
        carry_out_arena(small, folder, call="third", deadline=Deadline(0.0))
    assert folder.trouble(refused) is None
    assert left_over(small, folder, "third") == [refused]
