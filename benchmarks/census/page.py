"""docs/hosts/README.md from the results of the census."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.census.record import ASPECTS, MOST_USED, has_stack, kind_of, reasons

SIGNS = {"proved": "✓", "runs": "✓", "holds": "✓", "right": "✓", "refused": "refused", "no scan": "·", "none": "·"}
NAMES = {"transformers": "model types of transformers", "most used": "of them, the most used"}


def _share(count: int, total: int) -> str:
    return f"{count} of {total} ({100 * count / total:.0f} %)" if total else "none"


def _good(counted: Mapping[str, int]) -> int:
    return sum(counted.get(word, 0) for word in ("proved", "runs", "holds"))


def _table_of_counts(census: Mapping[str, Any]) -> list[str]:
    lines = [
        "| | with a stack of attention blocks | right at every layer | left out | refused | wrong | crashed | "
        "sites proved | weights proved | explain runs | sharpen | deescalate | layerscale |",
        "| --- " * 13 + "|",
    ]
    for name, counted in census["counts"].items():
        total, scan = counted["with a stack"], counted["scan"]
        cells = [str(total), _share(scan.get("right", 0), total)]
        cells += [str(scan.get(word, 0)) for word in ("left out", "refused", "wrong", "crashed")]
        cells += [str(_good(counted[aspect])) for aspect in ASPECTS]
        lines.append(f"| {NAMES.get(name, name)} | {' | '.join(cells)} |")
    return lines


def _sign(said: str) -> str:
    word = kind_of(said)
    return SIGNS.get(word, word)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _row(one: Mapping[str, Any]) -> str:
    stacks = "; ".join(f"`{stack['path'].rstrip('/')}` {stack['layers']}" for stack in one["stacks"])
    why = one["why"] if one["scan"] != "right" else next(
        (f"{aspect}: {one[aspect]}" for aspect in ASPECTS if _sign(one[aspect]) not in ("✓", "·")), ""
    )  # fmt: skip
    cells = [_sign(one["scan"]), *(_sign(one[aspect]) for aspect in ASPECTS)]
    return f"| {one['name']} | {stacks} | {' | '.join(cells)} | {_escaped(why)[:180]} |"


def page(census: Mapping[str, Any]) -> str:
    """The page for people."""
    rows = census["rows"]
    ours = [one for one in rows if one["library"] == "transformers"]
    counted = census["counts"]["transformers"]
    versions = ", ".join(f"{name} {version}" for name, version in census["versions"].items())
    static = counted["static"]
    total = counted["with a stack"]
    lines = [
        "# Architectures: what holds for each",
        "",
        f"Written by `make census` on {census['created'][:10]} ({versions}). Every model type of the installed "
        "transformers, the token models of timm and models of other libraries, each built tiny with random weights in "
        "which no norm or gate is neutral, each handed to `unsmooth` with no hint. The truth comes from another hand: "
        "hooks on every module find the stacks by the values of tensors, curves are taken from them in float64, and "
        "padding is found by changing what stands in it. [All results](../../benchmarks/results/census.json); the code "
        "is in `benchmarks/census`.",
        "",
        *_table_of_counts(census),
        "",
        "*Right*: every stack the finder saw is measured, or named in a note, and equal at every layer to 1e-4. *Left "
        "out*: a stack is missing without a word. *Sites proved*: each site's numbers are those of a tensor that is "
        "what the site says, by the sums of the residual stream. *Weights proved*: the attention output is rebuilt "
        "from the maps and the weights. *Remedies*: the neutral setting changes nothing, the active one does, no token "
        "sees a later one, and undo gives every bit back. A type with several stacks counts where all of them hold.",
        "",
        f"Of {counted['all']} types {counted['no stack']} have no stack of attention blocks and {counted['not built']} "
        "could not be built; both are named below. What transformers itself says of its blocks names all stacks that "
        f"were found for {_share(static['any'], total)}: `GradientCheckpointingLayer` {static['checkpointed']}, "
        f"`_can_record_outputs` {static['recorded']}, `_no_split_modules` {static['unsplit']}.",
        "",
        "## Why scans were refused",
        "",
        *([f"- {count}: {reason}" for reason, count in reasons(rows)] or ["None was."]),
        "",
        "## The most used",
        "",
        f"{len(MOST_USED)} types, a fixed list: {', '.join(MOST_USED)}.",
        "",
    ]
    for library in dict.fromkeys(one["library"] for one in rows):
        of_it = [one for one in rows if one["library"] == library and has_stack(one)]
        lines += [
            f"## {library}",
            "",
            "| architecture | stacks and layers | scan | sites | weights | explain | sharpen | deescalate | layerscale "
            "| what not |",
            "| --- " * 10 + "|",
            *(_row(one) for one in of_it),
            "",
        ]
    missing = [one for one in rows if one["scan"] == "not built"]
    none = [one for one in rows if one["scan"] == "no stack"]
    lines += ["## Without a stack of attention blocks", "", ", ".join(one["name"] for one in none) + ".", ""]
    lines += ["## Not built", "", *(f"- {one['name']}: {one['why'][:160]}" for one in missing), ""]
    assert len(ours) == counted["all"]
    return "\n".join(lines).rstrip() + "\n"
