"""The feature table, ours beside other tools, each mark of ours with the tests that prove it.

    python -m benchmarks.features [--out docs/features.md]

Facts are in features.json: rivals' marks as seen in their source, documentation or a run, ours with node ids of tests.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.rivals.page import table
from unsmooth.files import write_whole

ROOT = Path(__file__).parents[1]
FACTS = Path(__file__).with_suffix(".json")
MARKS = {"y": "yes", "p": "in part", "n": "no", "–": "does not apply"}


def main() -> None:
    """Check the facts, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "features.md")
    arguments = parser.parse_args()
    facts = read_facts()
    missing = list(missing_tests(facts))
    if missing:
        raise SystemExit("Tests that do not exist: " + ", ".join(missing))
    write_whole(arguments.out, page(facts))
    print(f"written to {arguments.out}")


def read_facts(path: Path = FACTS) -> dict[str, Any]:
    """The data file."""
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


def missing_tests(facts: Mapping[str, Any], root: Path = ROOT) -> Iterator[str]:
    """Node ids that name no test function; files are parsed, not run."""
    known: dict[str, set[str]] = {}
    for feature in facts["features"]:
        for node in feature["tests"]:
            file, _, name = node.partition("::")
            if file not in known:
                known[file] = test_names(root / file)
            if name not in known[file]:
                yield node


def test_names(path: Path) -> set[str]:
    """Names of the test functions at the top of a file; none where there is no such file."""
    if not path.is_file():
        return set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {one.name for one in tree.body if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")}


def page(facts: Mapping[str, Any]) -> str:
    """The Markdown page."""
    rivals = facts["rivals"]
    names = ", ".join(
        f"**{short}** {rival['name']}{'†' if rival['background'] else ''}" for short, rival in rivals.items()
    )
    parts = [
        "# What there is, and where",
        f"{', '.join(f'**{mark}** {word}' for mark, word in MARKS.items())}. {names}.",
        f"Other tools as of {facts['seen']}, from their source, their documentation and runs; columns marked † rest in "
        "part on background knowledge that was not checked again. Every mark of ours that is not **n** names tests "
        "that show it; they are run by `make test`. Those that need a GPU, a browser or another library skip "
        "without it.",
        tally(facts),
    ]
    for group in dict.fromkeys(feature["group"] for feature in facts["features"]):
        members = [feature for feature in facts["features"] if feature["group"] == group]
        header = ["feature", "unsmooth", *(f"{s}†" if r["background"] else s for s, r in rivals.items())]
        rows = [[_named(one), f"**{one['ours']}**", *one["rivals"]] for one in members]
        parts += [f"## {group}", table(header, rows), "\n".join(f"- {_proof(one)}" for one in members)]
    parts.append("Written by `python -m benchmarks.features` (`make features`) from `benchmarks/features.json`.")
    return "\n\n".join(parts) + "\n"


def tally(facts: Mapping[str, Any]) -> str:
    """How many of the features each has, wholly and in part."""
    features = facts["features"]
    marks = {"unsmooth": "".join(one["ours"] for one in features)}
    for number, rival in enumerate(facts["rivals"].values()):
        marks[rival["name"]] = "".join(one["rivals"][number] for one in features)
    rows = [
        [name, str(found.count("y")), str(found.count("p")), str(found.count("n"))] for name, found in marks.items()
    ]
    return table([f"of {len(features)} features", "y", "p", "n"], rows)


def _named(feature: Mapping[str, Any]) -> str:
    return str(feature["feature"]).replace("|", "\\|")


def _proof(feature: Mapping[str, Any]) -> str:
    links = ", ".join(f"[{node.rpartition('::')[2]}](../{node.partition('::')[0]})" for node in feature["tests"])
    note = f" ({feature['note']})" if feature.get("note") else ""
    return f"{feature['feature']}: **{feature['ours']}**{note}{f' — {links}' if links else ''}"


if __name__ == "__main__":
    main()
