"""Similarity of steered models against plain ones."""

from __future__ import annotations

import pytest

from tests.evidence.trained import Studies, bench, run
from unsmooth.evidence import CLAIMS, STUDIES, Bench, NotFinishedError

CLAIM = CLAIMS["steering-shows"]
BEFORE = {"plain": 0.5, "sharpen": 0.1, "smooth": 0.8}


def studies(after: dict[str, list[float]]) -> Studies:
    """Seeds differ by as much as they do in `after`; the other study has the first one."""

    def cosines(variant: str, seed: int) -> tuple[dict[str, object], ...]:
        ends = (BEFORE[variant] + 0.01 * seed, after[variant][seed])
        return tuple({"epoch": float(epoch), "layers": [0.3, last]} for epoch, last in enumerate(ends))

    def runs(count: int) -> dict[str, dict[int, object]]:
        return {
            variant: {
                seed: run(variant, seed, 0.5, similarity={"mean_cosine": cosines(variant, seed)})
                for seed in range(count)
            }
            for variant in BEFORE
        }

    return {"steering": runs(3), "finer_patches": runs(1)}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("sharpen", "outcome"),
    [([0.1, 0.11, 0.12], "for"), ([0.1, 0.5, 0.9], "undecided"), ([0.45, 0.46, 0.47], "against")],
)
def test_rule(sharpen: list[float], outcome: str) -> None:
    given = studies({"plain": [0.3, 0.31, 0.33], "sharpen": sharpen, "smooth": [0.6, 0.62, 0.63]})
    found = CLAIM.judge(CLAIM.measure(bench(**given)))
    assert found.outcome == outcome
    before = next(one for one in found.findings if "before" in one.what and "sharpen" in one.what)
    assert before.interval.value == pytest.approx(0.1 - 0.5)


def test_one_seed_is_told_and_decides_nothing() -> None:
    given = studies({"plain": [0.3, 0.31, 0.33], "sharpen": [0.1, 0.11, 0.12], "smooth": [0.6, 0.62, 0.63]})
    numbers = CLAIM.measure(bench(**given))
    finer = [one for one in CLAIM.judge(numbers).findings if one.what.startswith("finer patches")]
    assert [one.interval.value for one in finer] == pytest.approx([0.1 - 0.3, 0.6 - 0.3, 0.1 - 0.5, 0.8 - 0.5])
    assert all(one.outcome is None for one in finer)
    *_, after = CLAIM.figure(numbers).panels
    assert after.series[0].low is None
    assert after.series[1].y == pytest.approx([0.3, 0.1])


def test_the_verdict_does_not_wait_for_what_is_only_told_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfinished(*_: object) -> None:
        raise NotFinishedError("no time")

    given = studies({"plain": [0.3, 0.31, 0.33], "sharpen": [0.1, 0.11, 0.12], "smooth": [0.6, 0.62, 0.63]})
    place, whole = bench(**given), CLAIM.judge(CLAIM.measure(bench(**given)))
    known = type(place).study
    monkeypatch.setattr(
        type(place), "study", lambda self, name: (known if name == "steering" else unfinished)(self, name)
    )
    numbers = CLAIM.measure(place)
    found = CLAIM.judge(numbers)
    assert found.outcome == whole.outcome == "for"
    assert found.findings == tuple(one for one in whole.findings if not one.what.startswith("finer patches"))
    assert len(CLAIM.figure(numbers).panels) == 2
    monkeypatch.setattr(type(place), "study", unfinished)
    with pytest.raises(NotFinishedError):
        CLAIM.measure(place)


def test_finer_patches_are_the_recipe_but_for_its_length() -> None:
    from unsmooth.training import recipe

    given, found = recipe("vit_cifar100"), STUDIES["finer_patches"].configs(Bench(scale="full"))["plain"]
    assert found.network == given.network
    assert (found.network.image // found.network.patch) ** 2 == 256
    assert found.optimiser == given.optimiser
    assert (found.augment, found.batch) == (given.augment, given.batch)
    assert (found.epochs, given.epochs) == (60, 300)
    assert found.schedule == given.schedule
