"""What was asked for, checked before anything is built."""

from __future__ import annotations

import pytest

from tests.arena.tiny_arenas import plan, smallest
from unsmooth.arena import Budget, Entrant, plan_arena, split_remedies
from unsmooth.arena.budget import cut
from unsmooth.errors import UnsmoothError
from unsmooth.training import recipe
from unsmooth.training.timing import timetable


def test_every_combination_of_the_grid_is_a_model_with_its_own_plain() -> None:
    wanted = plan("sharpen", "deescalate(tau=0.5)", grid=["depth=1,2", "norm=pre,post"])
    assert list(wanted.models) == [
        "depth=1 norm=pre",
        "depth=1 norm=post",
        "depth=2 norm=pre",
        "depth=2 norm=post",
    ]
    assert (wanted.models["depth=2 norm=post"].network.depth, wanted.models["depth=2 norm=post"].network.norm) == (
        2,
        "post",
    )
    assert wanted.remedies == ("plain", "sharpen", "deescalate(tau=0.5)")
    assert len(wanted.entrants) == 12


def test_a_run_has_its_remedy_its_rate_and_its_seed() -> None:
    wanted = plan("sharpen", base=smallest(measuring__sequences=2))
    scored = wanted.settings(Entrant("vit_cifar100", "sharpen"), smallest(), 0.5, 1)
    assert (scored.remedies, scored.optimiser.lr, scored.seed, scored.steps) == (("sharpen",), 0.5, 1, 3)
    assert wanted.settings(Entrant("vit_cifar100", "plain"), smallest(), 0.5, 1).remedies == ()
    assert wanted.probe_seed not in wanted.seeds
    assert scored.measuring.sequences == 2
    assert wanted.settings(Entrant("vit_cifar100", "sharpen"), smallest(), 0.5, 100).measuring.sequences == 0


def test_runs_that_choose_a_rate_may_be_shorter_with_as_much_of_them_warming_up() -> None:
    base = smallest(steps=40, schedule__warmup=10)
    short = plan(probe=0.5).settings(Entrant("vit_cifar100", "plain"), base, 1e-3, 100)
    assert (short.steps, short.schedule.warmup, short.evaluate_every) == (20, 5, 20)


def test_the_recipes_own_rate_is_the_middle_of_the_default_grid() -> None:
    assert plan_arena(recipe("vit_cifar100"), ["sharpen"]).rates == (4.17e-5, 1.25e-4, 3.75e-4)


@pytest.mark.parametrize(("steps", "per_epoch"), [(100, 520), (7, 3), (12_345, 521)])
def test_a_cut_run_makes_just_so_many_steps(steps: int, per_epoch: int) -> None:
    config = recipe("vit_cifar100")
    table = timetable(cut(config, steps, float(per_epoch)), per_epoch, config.batch, 1)
    assert table.steps == steps
    assert table.warmup == round(steps * 5 / 300)


@pytest.mark.parametrize(
    ("text", "seconds", "steps"),
    [("5m", 300.0, None), ("90s", 90.0, None), ("1.5h", 5400.0, None), ("2000steps", None, 2000), (".5 m", 30.0, None)],
)
def test_a_budget_is_a_time_or_a_number_of_steps(text: str, seconds: float | None, steps: int | None) -> None:
    assert (Budget.read(text).seconds, Budget.read(text).steps) == (seconds, steps)


def test_a_time_is_as_many_steps_as_a_plain_run_makes_in_it() -> None:
    assert Budget.read("5m").steps_at(2.4e-3) == 125_000
    assert Budget.read("1s").steps_at(7.0) == 1


def test_commas_in_brackets_belong_to_options() -> None:
    assert split_remedies("a,b(c=1, d=[2, 3]) , e + f(g=(1,)),") == ("a", "b(c=1, d=[2, 3])", "e + f(g=(1,))")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"remedies": []}, "Expected at least one remedy beside the plain model but got none."),
        ({"remedies": ["plain"]}, "Expected at least one remedy"),
        ({"remedies": ["sharpn"]}, "Did you mean 'sharpen'?"),
        ({"remedies": ["sharpen", "sharpen()"]}, "'sharpen\\(\\)' twice"),
        ({"grid": ["depth"]}, "Expected --grid KEY=VALUE,VALUE but got 'depth'."),
        ({"grid": ["depth=1,1"]}, "Expected --grid KEY=VALUE,VALUE"),
        ({"grid": ["depth=1", "depth=2"]}, "Expected each axis of the grid once"),
        ({"grid": ["dept=1"]}, "Did you mean"),
        ({"rates": [1e-3, 0.0]}, "Expected learning rates above 0, each of them once"),
        ({"rates": [1e-3, 1e-3]}, "Expected learning rates above 0, each of them once"),
        ({"rates": [float("nan")]}, "Expected learning rates above 0"),
        ({"seeds": 0}, "Expected 1 to 100 seeds but got 0."),
        ({"probe": 0.0}, "Expected a share of the budget above 0 and up to 1"),
        ({"score": "acuracy"}, "Did you mean 'accuracy'?"),
    ],
)
def test_bad_input_is_told_in_one_line(asked: dict[str, object], said: str) -> None:
    given = {"remedies": ["sharpen"], **asked}
    with pytest.raises(UnsmoothError, match=said):
        plan_arena(smallest(), given.pop("remedies"), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["5", "m", "-5m", "0s", "1.5steps", "5 minutes", ""])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UnsmoothError, match="Expected a budget of a run"):
        Budget.read(text)
