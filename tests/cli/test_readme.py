"""What the README and the guides print can be typed, and what they link to is there."""

from __future__ import annotations

import importlib.util
import re
import shlex
from functools import reduce
from pathlib import Path

import pytest
import typer

import unsmooth
from unsmooth.cli.app import app
from unsmooth.losses import LOSSES
from unsmooth.posthoc import ESTIMATORS
from unsmooth.remedies import names
from unsmooth.training import RECIPES

ROOT = Path(__file__).parents[2]
GUIDES = ("scan", "explain", "steer", "monitor", "ledger", "plugins", "training/guide")
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in GUIDES)]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(r"```bash\n(.*?)```", TEXT.replace("\\\n", " "), re.DOTALL)
TYPED = [line.strip() for block in BLOCKS for line in block.splitlines()]
WRITTEN = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
IN_WORDS = {3: "Three", 6: "Six", 7: "Seven"}


def words(line: str) -> list[str]:
    """A line as a shell would take it apart, up to a pipe."""
    found = shlex.split(line, comments=True)
    return found[: found.index("|")] if "|" in found else found


def ours() -> list[list[str]]:
    """Every call of the command, without its name."""
    found = []
    for line in map(words, filter(None, TYPED)):
        if line[0] == "unsmooth":
            found.append(line[1:])
        elif line[0] == "torchrun":
            found.append(line[line.index("unsmooth") + 1 :])
    return found


@pytest.mark.parametrize("line", ours(), ids=" ".join)
def test_every_command_can_be_typed(line: list[str]) -> None:
    command, rest = typer.main.get_command(app), line
    while hasattr(command, "commands") and rest and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    assert rest != line, f"no verb {line[0]}"
    command.make_context(line[0], list(rest))  # reads the words, runs nothing


def test_the_front_door_is_one_page() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 10_000


def test_every_other_command_is_there() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    asked = re.findall(r"(?:^|`)make ([\w-]+)", TEXT, re.MULTILINE)
    assert len(asked) >= 5
    assert set(asked) <= set(targets)
    for module in re.findall(r"python -m ([\w.]+)", TEXT):
        assert importlib.util.find_spec(module) is not None, module


def test_every_name_of_ours_is_there() -> None:
    # Groups of entry points are called so too.
    asked = set(re.findall(r"""(?<![\w.."`])unsmooth((?:\.[a-zA-Z_]\w*)+)|`unsmooth((?:\.[a-zA-Z_]\w*)+)\(""", TEXT))
    asked = {first or second for first, second in asked}
    assert len(asked) >= 15
    for path in asked:
        reduce(getattr, path.strip(".").split("."), unsmooth)


def test_numbers_of_things_are_those_of_the_registries() -> None:
    assert f"**[{IN_WORDS[len(LOSSES)]} losses of hidden states](losses.md)**" in TEXT
    assert f"**[{IN_WORDS[len(ESTIMATORS)]} estimators for embeddings](posthoc.md)**" in TEXT
    assert f"**{IN_WORDS[len(RECIPES)]} recipes**" in TEXT
    assert {int(number) for number in re.findall(r"\b(\d+) remedies\b", TEXT)} == {len(list(names()))}
    features = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
    for number, things in ((len(list(names())), "remedies"), (len(LOSSES), "losses"), (len(ESTIMATORS), "estimators")):
        assert f"({number} {things}, " in features


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```\s*$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target, anchor in re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", target):
            continue
        place = page.parent / target if target else page
        assert place.exists(), target
        if anchor and place.suffix == ".md":
            assert anchor in anchors(place.read_text(encoding="utf-8")), f"{target}#{anchor}"


def anchors(text: str) -> set[str]:
    """What its headings are called in links: in small letters, without signs, with hyphens for spaces.

    >>> anchors("## Which one: `unsmooth arena`")
    {'which-one-unsmooth-arena'}
    """
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}
