"""docs/rivals/README.md out of the measured cells; no number on it is typed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.rivals.cells import OURS, RIVAL, TOKENS

TITLES = {
    "unsmooth_scan": "unsmooth",
    "embedding_condensation": "embedding-condensation",
    "torchmetrics_pairwise": "torchmetrics",
    "stable_pretraining": "stable-pretraining RankMe",
    "weightwatcher": "weightwatcher",
}
QUANTITIES = {
    "mean_cosine": "Mean cosine of pairs i ≠ j",
    "mean_cosine_with_self": "Mean cosine, diagonal included",
    "cosine_spread": "Spread of the cosines: 95 % minus 5 % quantile over pairs, mean over texts",
    "effective_rank": "Effective rank (RankMe): exp of the entropy of σ/Σσ",
    "stable_rank": "Stable rank of a matrix: Σσ²/σ₁²",
}
# Padding is nothing that a weight matrix has.
NOT_ASKED = {("weightwatcher", "padding"), ("weightwatcher", "texts of unequal length")}
CLOSE = 1e-4
"""An answer is marked where it is further from the truth than this, relative to the larger of the truth and one."""
LEAST_MIB = 1.0
"""Memory below this is not told from none: ratios take at least so much."""
BAR = 5.0
Cells = Mapping[str, Mapping[str, Any]]


def page(correctness: Mapping[str, Any], cost: Mapping[str, Any]) -> str:
    """The Markdown page."""
    parts = [
        "# unsmooth beside the tools people use now",
        "Written by `python -m benchmarks.rivals` (`make rivals`) from "
        "[answers](../../benchmarks/results/rivals_correctness.json) and "
        "[costs](../../benchmarks/results/rivals_cost.json). Every tool runs in a process of its own, in its own "
        "environment (`make rivals-env`), called as its documentation says; none of their code is here. "
        "What each can do beyond this is in the [feature table](../features.md).",
        "## Answers",
        *_answers(correctness),
        "## Cost over the plain forward pass",
        *_costs(cost["cells"], cost.get("machine", {})),
        "## Versions",
        _versions([*correctness["cells"].values(), *cost["cells"].values()]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _answers(correctness: Mapping[str, Any]) -> Iterable[str]:
    if not correctness["cells"]:
        return
    yield (
        "Truth is computed in float64 from the definition. **Bold**: further from it than "
        f"{CLOSE:g} of the larger of the truth and 1. Cases: "
        + "; ".join(f"*{name}*, {about}" for name, about in correctness["cases"].items())
        + "."
    )
    for quantity, title in QUANTITIES.items():
        tools = [
            tool
            for tool, cell in correctness["cells"].items()
            if any(isinstance(found, Mapping) and quantity in found for found in cell["answers"].values())
        ]
        if not tools:
            continue
        header = ["case", "truth", *(TITLES[tool] for tool in tools)]
        rows = [
            [case, _number(truth[quantity]), *(_answer(correctness, tool, case, quantity) for tool in tools)]
            for case, truth in correctness["truth"].items()
        ]
        yield f"### {title}\n\n{table(header, rows)}"
    yield _notes(correctness)


def _answer(correctness: Mapping[str, Any], tool: str, case: str, quantity: str) -> str:
    if (tool, case) in NOT_ASKED:
        return "–"
    found = correctness["cells"][tool]["answers"].get(case)
    if found is None:
        return "–"
    if isinstance(found, str):
        return f"**{found.partition(':')[0]}**"
    value = found.get(quantity)
    if value is None:
        return "**NaN**"
    return _number(value) if is_close(value, correctness["truth"][case][quantity]) else f"**{_number(value)}**"


def is_close(value: float, truth: float) -> bool:
    """Whether an answer is the truth up to what float32 leaves.

    >>> is_close(0.90001, 0.9), is_close(0.91, 0.9), is_close(50.001, 50.0)
    (True, False, True)
    """
    return abs(value - truth) <= CLOSE * max(abs(truth), 1.0)


def _notes(correctness: Mapping[str, Any]) -> str:
    """What each tool is asked for, how, and how far it is off at most."""
    lines = [
        "embedding-condensation hands over matrices with their diagonal, which is its definition: only the second "
        "table is about its arithmetic. It reads texts one by one, so padding comes in with a tokenizer that pads, "
        "and texts of unequal length stop it. Its heat map is of matrices that were averaged over texts first.",
        'torchmetrics is asked for `reduction="mean"`, and for the same with `zero_diagonal=False`; it takes no mask.',
        "RankMe is the callback itself, outside of a Lightning run; it takes no mask, and adds 10⁻⁵ to each p.",
    ]
    for quantity, title in QUANTITIES.items():
        found = [f"{TITLES[tool]} {_furthest(correctness, tool, quantity)}" for tool in correctness["cells"]]
        told = "; ".join(one for one in found if not one.endswith("–"))
        lines.append(f"{title.partition(':')[0]}, furthest from the truth: {told}.")
    return "\n".join(f"- {line}" for line in lines)


def _furthest(correctness: Mapping[str, Any], tool: str, quantity: str) -> str:
    """The largest distance from the truth among the cases with a number, and how many have none."""
    answers = correctness["cells"][tool]["answers"]
    asked = {case: found for case, found in answers.items() if (tool, case) not in NOT_ASKED}
    numbers = {
        case: abs(found[quantity] - correctness["truth"][case][quantity])
        for case, found in asked.items()
        if isinstance(found, Mapping) and found.get(quantity) is not None
    }
    if not numbers:
        return "–"
    worst = max(numbers, key=lambda case: numbers[case])
    none = len(asked) - len(numbers)
    return f"{numbers[worst]:.1g} ({worst})" + (f", no number in {none}" if none else "")


def _costs(cells: Cells, machine: Mapping[str, Any]) -> Iterable[str]:
    if not cells:
        return
    yield (
        f"One thread of {machine.get('processor', 'a processor')}, CPU seconds, as cores may be shared; wall-clock "
        "seconds are in the json. Each text (or batch of 16) goes through a plain twin of the model, on the same "
        "weights, and then through the measured one. “Own” is the time of the measurement itself: all that goes by "
        "outside of the forward pass and in hooks during it, from before the first to after the last text (for "
        "unsmooth with its manifest), less what goes by outside of the forward pass in a plain step. “Difference” is "
        "measured minus plain passes, which vary by some per cent: “plain” in the place of a measurement shows by how "
        "much. Of several rounds each step counts by the least it took. Memory added is "
        "the peak of resident memory over that of the plain pass of the same batches. For embedding-condensation the "
        "picture is left out, which would add more. “Same job” and the rank are asked for with `confounds=False` "
        "and `fingerprint=False`, as no other tool looks for tokens and dimensions that stand out or hashes the "
        "weights; the default scan does. What the heap gives back and when moves peaks by some MiB from process to "
        "process."
    )
    loads = [cell["load_before"] for cell in cells.values() if "load_before" in cell]
    if loads:
        cores = machine.get("cores")
        yield (
            f"How busy the machine was: load averages from {min(loads):.1f} to {max(loads):.1f} on {cores} cores when "
            "measurements began. Above the number of cores, differences of a few per cent of the plain pass are noise."
        )
    header = ["model", "tokens", "texts", "way", "texts at a time"]
    header += ["plain s", "own s", "own %", "difference s", "added MiB"]
    yield table(header, [_cost_row(cell) for cell in sorted(cells.values(), key=_size)])
    yield "### Against embedding-condensation"
    yield "\n".join(f"- {line}" for line in versus(cells))


def _cost_row(cell: Mapping[str, Any]) -> list[str]:
    spent = cell["seconds"]["cpu"]
    return [
        cell["model"],
        str(cell["tokens"]),
        str(cell["texts"]),
        cell["way"],
        str(cell["batch"]),
        f"{spent['plain']:.2f}",
        f"{spent['own']:.3f}",
        f"{spent['own'] / spent['plain']:.1%}",
        f"{spent['added']:+.2f}",
        f"{cell['memory']['added_mib']:+.0f}",
    ]


def versus(cells: Cells) -> Iterable[str]:
    """Where unsmooth, asked for the same, stands against the one direct rival, which reads one text at a time."""
    pairs = _pairs(cells, one_at_a_time=False)
    if not pairs:
        return
    for what, same in (("16 texts at a time, as is its default", pairs), ("one text at a time", _pairs(cells, True))):
        if same:
            ratios = [(_size(one), _own(one) / _own(two), False) for one, two in same]
            yield _ratios(f"Time added, theirs over ours with {what}", ratios)
    long = [(one, two) for one, two in pairs if one["tokens"] == max(TOKENS)]
    if long:
        ratios = [(_size(one), _mib(one) / max(_mib(two), LEAST_MIB), _mib(two) < LEAST_MIB) for one, two in long]
        yield _ratios(f"Memory added at {max(TOKENS)} tokens, theirs over ours", ratios)
    yield from _growth(pairs)
    yield _means(pairs)


def _pairs(cells: Cells, one_at_a_time: bool) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Their cell and ours of every size."""
    return [
        (theirs, ours)
        for theirs in cells.values()
        if theirs["way"] == RIVAL
        for ours in cells.values()
        if ours["way"] == OURS and (ours["batch"] == 1) == one_at_a_time and _size(ours) == _size(theirs)
    ]


def _ratios(what: str, ratios: Sequence[tuple[tuple[Any, ...], float, bool]]) -> str:
    """In words; what is too little to be measured gives a lower limit."""
    below = [name for name, ratio, _ in ratios if ratio < BAR]
    told = "; ".join(f"{_named(name)} {'more than ' if floored else ''}{ratio:.1f}x" for name, ratio, floored in ratios)
    verdict = f"at least {BAR:g}x less in {len(ratios) - len(below)} of {len(ratios)}"
    return f"{what}: {told}. So {verdict}."


def _growth(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Iterable[str]:
    """Memory with few and with many texts."""
    for model, tokens in dict.fromkeys(_size(one)[:2] for one, _ in pairs):
        same = sorted((p for p in pairs if _size(p[0])[:2] == (model, tokens)), key=lambda pair: pair[0]["texts"])
        if len(same) > 1:
            (first, ours_first), (last, ours_last) = same[0], same[-1]
            yield (
                f"{model}, {tokens} tokens: from {first['texts']} to {last['texts']} texts their added memory goes "
                f"from {_mib(first):.0f} to {_mib(last):.0f} MiB, ours from {_mib(ours_first):.0f} to "
                f"{_mib(ours_last):.0f}."
            )


def _means(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    name = "mean_cosine_with_self"
    worst = max(abs(a - b) for one, two in pairs for a, b in zip(one["found"][name], two["found"][name], strict=True))
    layers = sum(len(one["found"][name]) for one, _ in pairs)
    return (
        f"With the diagonal and special tokens counted, as they do, the {layers} layer means of both agree to "
        f"{worst:.0e}."
    )


def _size(cell: Mapping[str, Any]) -> tuple[str, int, int]:
    return cell["model"], cell["tokens"], cell["texts"]


def _named(size: tuple[Any, ...]) -> str:
    model, tokens, texts = size
    return f"{model} {tokens} tokens {texts} texts"


def _own(cell: Mapping[str, Any]) -> float:
    return float(cell["seconds"]["cpu"]["own"])


def _mib(cell: Mapping[str, Any]) -> float:
    return float(cell["memory"]["added_mib"])


def _number(value: float) -> str:
    return f"{value:.5f}" if abs(value) < 2 else f"{value:.3f}"


def _versions(cells: Iterable[Mapping[str, Any]]) -> str:
    found = sorted({f"{name} {version}" for cell in cells for name, version in cell["versions"].items()})
    return ", ".join(found) + "."


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
