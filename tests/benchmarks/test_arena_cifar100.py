"""The arena on CIFAR-100 is what its head says it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.arena_cifar100 import LONGER, NORMS, SETTINGS, SHORT, Match, publish, take_rates, words

from tests.arena.tiny_arenas import made_up, plan
from unsmooth.arena import ArenaFolder, Budget, Entrant, Plan, plan_arena, standings
from unsmooth.arena.plan import Settled, cut, refusal
from unsmooth.evidence.records import differing_settings
from unsmooth.training import override, recipe
from unsmooth.training.plain import to_plain

ACCURACIES = {"plain": [0.50, 0.52, 0.51], "deescalate": [0.60, 0.63, 0.61], "sharpen": [0.40, 0.70, 0.55]}


def planned(match: Match) -> Plan:
    base = override(recipe("vit_cifar100"), SETTINGS)
    budget = Budget.read(f"{match.steps}steps")
    return plan_arena(base, match.remedies, grid=[match.depths, NORMS], budget=budget, probe=match.probe)


@pytest.mark.parametrize(("match", "pre", "post"), [(SHORT, 16, 17), (LONGER, 7, 9)])
def test_so_many_entrants_and_the_others_are_refused(match: Match, pre: int, post: int) -> None:
    small = override(recipe("vit_cifar100"), {**SETTINGS, "dim": 24, "hidden": 24, "network.heads": 3})
    wanted = plan_arena(small, match.remedies, grid=["depth=1", NORMS])
    taking_part = {
        name: [remedy for remedy in wanted.remedies if refusal(Entrant(name, remedy), config) is None]
        for name, config in wanted.models.items()
    }
    assert {name: len(remedies) for name, remedies in taking_part.items()} == {
        "depth=1 norm=pre": pre,
        "depth=1 norm=post": post,
    }


def test_both_choose_rates_by_the_same_runs() -> None:
    """So that the second may take those of the first."""
    one, two = planned(SHORT), planned(LONGER)
    entrant, unit = Entrant("depth=12 norm=post", "b2t"), 50_000 / 96
    runs = [
        of.settings(entrant, Settled(cut(of.models[entrant.model], match.steps, unit), unit), 4e-4, of.probe_seed)
        for of, match in ((one, SHORT), (two, LONGER))
    ]
    assert differing_settings(to_plain(runs[0]), runs[1]) == []
    assert runs[0].steps == 900


def test_rates_of_those_who_take_part_are_taken_once(tmp_path: Path) -> None:
    for place in ("depth-12-norm-pre/plain", "depth-12-norm-pre/gfsa", "depth-24-norm-pre/plain"):
        folder = tmp_path / "short/results" / place
        folder.mkdir(parents=True)
        (folder / "rate-0.0004.json").write_text(place)
        (folder / "seed-0-rate-0.0004.json").write_text(place)
    take_rates(tmp_path / "short", tmp_path / "longer")
    taken = [str(path.relative_to(tmp_path / "longer")) for path in (tmp_path / "longer").rglob("*.json")]
    assert taken == ["results/depth-12-norm-pre/plain/rate-0.0004.json"]
    (tmp_path / "longer" / taken[0]).write_text("its own")
    take_rates(tmp_path / "short", tmp_path / "longer")
    assert (tmp_path / "longer" / taken[0]).read_text() == "its own"


def made(results: Path, match: Match, accuracies: dict[str, list[float]]) -> None:
    wanted, folder = plan("deescalate", "sharpen", "deepnorm", seeds=3, widen=1), ArenaFolder(results / match.folder)
    made_up(folder, wanted, accuracies)
    folder.write_trouble(Entrant("vit_cifar100", "deepnorm"), "refused", "no norm", "")
    standings(plan("deescalate", "sharpen", "deepnorm", seeds=3), folder).write(folder)
    for name in ("arena.html", "arena.svg"):
        (folder.path / name).write_text(f"{name} of {match.name}")


def test_what_is_found_becomes_a_page_of_documentation(tmp_path: Path) -> None:
    made(tmp_path, SHORT, ACCURACIES)
    publish(tmp_path, tmp_path / "docs")
    lines = (tmp_path / "docs" / "README.md").read_text().splitlines()
    deescalate = "0.01 (edge) | 61.3 [57.5, 65.1] | 10.3 [8.9, 11.8] | better | 1.25× | none |"
    assert f"| vit_cifar100 | `deescalate` | {deescalate}" in lines
    assert "| vit_cifar100 | `deepnorm` | – | – | – | – | – | refused |" in lines
    assert "the other 10 %, the same for all: no rate was chosen on the test set." in " ".join(lines)
    assert "last" not in "".join(line for line in lines if line.startswith("##"))
    assert (tmp_path / "docs" / "arena.html").read_text() == "arena.html of arena"
    assert not (tmp_path / "docs" / "longer.html").exists()


def test_what_lasts_is_told_beside_it(tmp_path: Path) -> None:
    made(tmp_path, SHORT, ACCURACIES)
    swapped = {"plain": ACCURACIES["plain"], "deescalate": ACCURACIES["sharpen"], "sharpen": [0.3, 0.32, 0.31]}
    made(tmp_path, LONGER, swapped)
    publish(tmp_path, tmp_path / "docs")
    text = " ".join((tmp_path / "docs" / "README.md").read_text().split())
    assert "Of 1 that were better than plain 0 still are; new: none." in text
    assert "Of 0 that were worse than plain 0 still are; new: `sharpen` (vit_cifar100)." in text
    assert (tmp_path / "docs" / "longer.html").read_text() == "arena.html of longer"


def test_words_that_are_added_count() -> None:
    assert words(SHORT, Path("here"), ["--processes", "2"])[-2:] == ["--processes", "2"]
