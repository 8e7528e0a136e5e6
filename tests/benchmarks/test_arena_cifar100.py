"""The arena on CIFAR-100 is what its head says it is."""

from __future__ import annotations

from pathlib import Path

from benchmarks.arena_cifar100 import GRID, REMEDIES, SETTINGS, publish, words

from tests.arena.tiny_arenas import made_up, plan
from unsmooth.arena import ArenaFolder, Entrant, plan_arena, standings
from unsmooth.arena.plan import refusal
from unsmooth.training import override, recipe


def test_so_many_entrants_and_the_others_are_refused() -> None:
    small = override(recipe("vit_cifar100"), {**SETTINGS, "dim": 24, "hidden": 24, "network.heads": 3})
    wanted = plan_arena(small, REMEDIES, grid=["depth=1", GRID[1]])
    taking_part = {
        name: [remedy for remedy in wanted.remedies if refusal(Entrant(name, remedy), config) is None]
        for name, config in wanted.models.items()
    }
    assert {name: len(remedies) for name, remedies in taking_part.items()} == {
        "depth=1 norm=pre": 16,
        "depth=1 norm=post": 17,
    }


def test_what_is_found_becomes_a_page_of_documentation(tmp_path: Path) -> None:
    wanted, folder = plan("deescalate", "deepnorm", seeds=3), ArenaFolder(tmp_path / "out")
    made_up(folder, wanted, {"plain": [0.50, 0.52, 0.51], "deescalate": [0.60, 0.63, 0.61]})
    folder.write_trouble(Entrant("vit_cifar100", "deepnorm"), "refused", "no norm", "")
    standings(wanted, folder).write(folder)
    for name in ("arena.html", "arena.svg"):
        (folder.path / name).write_text(name)
    publish(folder.path, tmp_path / "docs")
    lines = (tmp_path / "docs" / "README.md").read_text().splitlines()
    deescalate = "0.01 (edge) | 61.3 [57.5, 65.1] | 10.3 [8.9, 11.8] | better | 1.25× | none |"
    assert f"| vit_cifar100 | `deescalate` | {deescalate}" in lines
    assert "| vit_cifar100 | `deepnorm` | – | – | – | – | – | refused |" in lines
    assert "the other 10 %, the same for all: no rate was chosen on the test set." in " ".join(lines)
    assert (tmp_path / "docs" / "arena.html").read_text() == "arena.html"


def test_words_that_are_added_count() -> None:
    assert words(Path("here"), ["--processes", "2"])[-2:] == ["--processes", "2"]
