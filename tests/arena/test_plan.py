"""What was asked for, checked before anything is built."""

from __future__ import annotations

import pytest
import torch

from tests.arena.tiny_arenas import plan, smallest
from unsmooth.arena import Budget, Entrant, Settled, plan_arena
from unsmooth.arena.plan import check_options, check_possible, cut
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
    base = Settled(smallest(measuring__sequences=2))
    scored = wanted.settings(Entrant("vit_cifar100", "sharpen"), base, 0.5, 1)
    assert (scored.remedies, scored.optimiser.lr, scored.seed, scored.steps) == (("sharpen",), 0.5, 1, 3)
    assert wanted.settings(Entrant("vit_cifar100", "plain"), base, 0.5, 1).remedies == ()
    assert wanted.probe_seed not in wanted.seeds
    assert scored.measuring.sequences == 2
    assert wanted.settings(Entrant("vit_cifar100", "sharpen"), base, 0.5, 100).measuring.sequences == 0


def test_runs_that_choose_a_rate_may_be_shorter_with_as_much_of_them_warming_up() -> None:
    base = Settled(smallest(steps=40, schedule__warmup=10))
    short = plan(probe=0.5).settings(Entrant("vit_cifar100", "plain"), base, 1e-3, 100)
    assert (short.steps, short.schedule.warmup, short.evaluate_every) == (20, 5, 20)


def test_runs_that_choose_a_rate_hold_samples_out_and_make_as_many_steps() -> None:
    whole = smallest(steps=None, epochs=10.0, schedule__warmup=2.0, checkpoint_every=5.0)
    base = Settled(whole, steps_of_a_unit=30.0)  # an epoch of all samples
    plain = Entrant("vit_cifar100", "plain")
    wanted = plan(probe=0.5, hold_out=0.2)
    probe, scored = (wanted.settings(plain, base, 1e-3, seed) for seed in (100, 0))
    assert (probe.data.hold_out, scored.data.hold_out) == (0.2, 0.0)
    assert (probe.epochs, probe.steps, probe.schedule.warmup, probe.checkpoint_every) == (None, 150, 30.0, 150.0)
    assert timetable(probe, per_epoch=24, share=8, ranks=1).steps == 150  # of fewer samples
    assert (scored.epochs, scored.steps, scored.schedule.warmup) == (10.0, None, 2.0)
    on_test = plan(probe=0.5, hold_out=0.0).settings(plain, base, 1e-3, 100)
    assert (on_test.data.hold_out, on_test.epochs, on_test.schedule.warmup) == (0.0, 5.0, 1.0)


def test_by_default_a_tenth_is_held_out_where_rates_are_chosen() -> None:
    assert (plan().hold_out, plan().held_out) == (0.1, 0.1)
    assert plan(rates=(1e-3,)).held_out == 0.0


def test_a_task_that_holds_nothing_out_asks_for_a_hold_out_of_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unsmooth.training.tasks.images.ImageTask.holds_out", False)
    with pytest.raises(UnsmoothError, match=r"Expected a task that can hold samples out, .* Try --hold-out 0: "):
        plan()
    assert plan(hold_out=0.0).held_out == 0.0
    assert plan(rates=(1e-3,)).held_out == 0.0  # nothing is chosen


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


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"remedies": []}, "Expected at least one remedy beside the plain model but got none."),
        ({"remedies": ["plain"]}, "Expected at least one remedy"),
        ({"remedies": ["sharpn"]}, "Did you mean 'sharpen'?"),
        ({"remedies": ["sharpen", "sharpen()"]}, "'sharpen\\(\\)' twice"),
        ({"grid": ["depth"]}, "Expected --grid KEY=VALUE,VALUE but got 'depth'."),
        ({"grid": ["depth=1,1"]}, "Expected --grid KEY=VALUE,VALUE"),
        ({"grid": ["depth=1", "depth=2"]}, "Expected depth once"),
        ({"grid": ["dept=1,2"]}, "Did you mean 'depth'?"),
        ({"rates": [1e-3, 0.0]}, "Expected finite learning rates above 0 that differ"),
        ({"rates": [1e-3, 1e-3]}, "Expected finite learning rates above 0 that differ"),
        ({"rates": [float("nan")]}, "Expected finite learning rates above 0"),
        ({"rates": [float("inf")]}, "Expected finite learning rates above 0"),
        ({"rates": [1e-3, 1.0000001e-3]}, "that differ in their first six digits"),
        ({"grid": ["lr=1e-3,1e-2"]}, "axes of the grid that an arena does not set itself but got 'lr'. Try --rates"),
        ({"grid": ["optimiser.lr=1e-3,1e-2"]}, "but got 'optimiser.lr'"),
        ({"grid": ["seed=1,2"]}, "but got 'seed'. Try --seeds 3"),
        ({"grid": ["steps=1,2"], "budget": Budget.read("2steps")}, "but got 'steps'. Try no --budget"),
        ({"grid": ["depth=2,02"]}, "Expected models that differ but got 'depth=2' and 'depth=02', whose runs are"),
        ({"grid": ["evaluate_every=1,2"]}, "Expected models that differ"),
        ({"seeds": 0}, "Expected 1 to 100 seeds but got 0."),
        ({"probe": 0.0}, "Expected a share of the budget above 0 and up to 1"),
        ({"score": "acuracy"}, "Did you mean 'accuracy'?"),
        ({"hold_out": -0.1}, "Expected a share of the training samples from 0 to below 1 but got -0.1. Try --hold-out"),
        ({"hold_out": 1.0}, "Expected a share of the training samples from 0 to below 1"),
        ({"hold_out": float("nan")}, "Expected a share of the training samples from 0 to below 1"),
        ({"grid": ["hold_out=0,0.2"]}, "Expected scored runs that are evaluated on the test set but got data.hold_out"),
    ],
)
def test_bad_input_is_told_in_one_line(asked: dict[str, object], said: str) -> None:
    given = {"remedies": ["sharpen"], **asked}
    with pytest.raises(UnsmoothError, match=said):
        plan_arena(smallest(), given.pop("remedies"), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["5", "m", "-5m", "0s", "9" * 400 + "s", "1.5steps", "5 minutes", ""])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UnsmoothError, match="Expected a budget of a run"):
        Budget.read(text)


def test_an_arena_of_refused_remedies_alone_is_refused() -> None:
    base = recipe("vit_cifar100", "tiny")
    with pytest.raises(UnsmoothError, match=r"none \(softdecay\(alpha=0.0\): .*deepnorm: "):
        check_possible(plan_arena(base, ["softdecay(alpha=0)", "deepnorm"]))
    check_possible(plan_arena(base, ["softdecay(alpha=0)", "deepnorm", "deescalate"]))
    check_possible(plan_arena(base, ["deepnorm"], grid=["norm=pre,post"]))


def test_remedies_that_differ_in_a_sign_are_two() -> None:
    wanted = plan("attnscale(omega=-0.5)", "attnscale(omega=0.5)", "deescalate(layers='-1')", "deescalate(layers='1')")
    assert [one.place.partition("/")[2] for one in wanted.entrants[1:]] == [
        "attnscale-omega-minus0.5",
        "attnscale-omega-0.5",
        "deescalate-layers-minus1",
        "deescalate-layers-1",
    ]


def test_remedies_that_would_share_a_folder_are_told_apart_from_equal_ones() -> None:
    with pytest.raises(
        UnsmoothError, match=r"remedies whose folders differ but got .*, both called deescalate-layers-"
    ):
        plan("deescalate(layers='1:2')", "deescalate(layers='1,2')")


@pytest.mark.parametrize(
    ("remedy", "said"),
    [
        ("sharpen(basis=orthgonal)", "basis as one of .* but got 'orthgonal'. Try basis='orthogonal'"),
        (
            "residual_scaling + b2t(scale=0.5)",
            r"In residual_scaling \+ .*: Expected scale=None with norm=.* but got 0.5",
        ),
        ("deescalate(layers='7')", r"Expected layers from 0 to 0"),
        ("deescalate(stack=encodr)", r"Expected no stack"),
        ("deepnorm(variant=papr)", "Try variant='paper'"),  # which no model here could have anyway
    ],
)
def test_an_option_that_is_wrong_on_every_model_is_no_refusal_of_a_model(remedy: str, said: str) -> None:
    with pytest.raises(UnsmoothError, match=said):
        check_options(plan(remedy, "deescalate"))


def test_what_a_model_refuses_is_no_mistake() -> None:
    check_options(plan("deepnorm", "deescalate"))
    check_options(plan("deescalate(layers='2')", grid=["depth=1,3"]))  # one of them has such a layer
    check_options(plan_arena(recipe("xl_wt103", "tiny"), ["gfsa", "deescalate(mean=all)"]))  # which leaks


def test_looking_at_options_draws_nothing() -> None:
    before = torch.get_rng_state()
    check_options(plan("sharpen(start=fresh)", "mimetic"))
    assert torch.equal(torch.get_rng_state(), before)


def test_lengths_may_differ_where_there_is_no_budget() -> None:
    assert [model.steps for model in plan(grid=["steps=2,3"]).models.values()] == [2, 3]
