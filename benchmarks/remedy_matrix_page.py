"""The page of the matrix of remedies and hosts, written from what `benchmarks.remedy_matrix` found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.remedies.harness import OF_PAIRS

PAIRED = ("bert", "gpt2")
COMPILED = "compiles whole"
SIGNS = {"pass": "✓", "fail": "✗", "impossible": "—", "not applicable": "·"}


def statuses(found: Mapping[str, Any]) -> Iterator[str]:
    """Of every check of every case and pair."""
    for entry in [*found["cases"], *found["pairs"]]:
        yield from (status for words, status in entry["outcomes"].items() if (words, status) != ("applies", "pass"))


def failing_checks(found: Mapping[str, Any]) -> Iterator[str]:
    """A line for each that fails."""
    for entry in [*found["cases"], *found["pairs"]]:
        for words, status in entry["outcomes"].items():
            if status == "fail":
                who = " + ".join(name for name in (entry.get("below"), entry["remedy"]) if name)
                yield f"{who} ({entry['setting']}) on {entry['host']}, {words}: {entry['reasons'][words]}"


def page(found: Mapping[str, Any]) -> str:
    """The page for people."""
    total = Counter(statuses(found))
    failing = list(failing_checks(found))
    impossible = [entry for entry in found["cases"] if entry["outcomes"]["applies"] == "impossible"]
    possible = len(found["cases"]) - len(impossible)
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    remedies = found["remedies"].items()
    lines = [
        "# Remedies and hosts",
        "",
        f"Every remedy on every host, in further settings on one host of each family: {len(found['cases'])} "
        "combinations, of which "
        f"{possible} are possible and {len(impossible)} are refused with a reason: before anything is touched or, "
        "where only a call says that attention is causal (torch's own layers), in that call. Of the "
        f"checks {total['pass']} pass and {total['fail']} fail; {total['not applicable']} do not apply (a vision model "
        f"has no padding, an encoder no cache). Written by `make matrix` ({versions}). {_measured(found)}",
        "",
        "All hosts are tiny: three layers of width 16 to 32, random weights; timm's block is a stand-in, and timm "
        "itself is tried by the tests where it is installed. New parameters are moved away from where they "
        "start, as training would, in every check but those of the neutral setting, of undo and of plain checkpoints. "
        "“To the bit” means equal in every bit; elsewhere numbers are compared to 2e-5 of the largest (folded "
        "weights and loaded checkpoints to 1e-4). `nn.TransformerEncoder` is compared with torch's fused layer off, "
        "which rounds otherwise. Mixtral's router gives every token to all experts here, because which ones it chooses "
        "may change by rounding.",
        "",
        "## What fails",
        "",
        *([f"- {line}" for line in failing] or ["Nothing."]),
        "",
        "## The remedies",
        "",
        _table(
            ("remedy", "paper", "neutral setting", "in a decoder", "folds"),
            [(name, said["paper"], f"`{said['neutral']}`", said["causal"], said["folds"]) for name, said in remedies],
        ),
        "",
        "## What is asked",
        "",
        _table(
            ("", "check", "what it asks", "pass", "fail"),
            [(str(number), *_check_row(found, words)) for number, words in enumerate(found["checks"], 1)],
        ),
        "",
        "## What is impossible",
        "",
        _table(("remedy", "hosts", "why"), _reasons(found["cases"])),
        "",
        "## Remedy by remedy",
        "",
        "Settings that pass, of those that are possible, by the number of the check; · where it does not apply, — "
        "where no setting is possible.",
        "",
        *_by_remedy(found),
        *_stacked(found),
        "",
    ]
    return "\n".join(lines)


def _measured(found: Mapping[str, Any]) -> str:
    """At which commits, and what of it where that was little."""
    rows = [*found["cases"], *found["pairs"]]
    said = []
    for at, count in Counter(row["at"] for row in rows).most_common():
        hosts = list(dict.fromkeys(row["host"] for row in rows if row["at"] == at))
        where = ", ".join(hosts) if len(hosts) < 4 else f"{len(hosts)} hosts"
        said.append(f"{at} ({count} on {where})")
    text = f"Combinations and pairs measured at commit {'; '.join(said)}; + has changes on top of it."
    possible = [row for row in found["cases"] if row["outcomes"]["applies"] == "pass"]
    left = Counter(row["host"] for row in possible if COMPILED not in row["outcomes"])
    if left and COMPILED in found["checks"]:
        where = ", ".join(f"{host} ({count})" for host, count in left.items())
        text += f" It was not asked whether these compile: {where}."
    return text


def _check_row(found: Mapping[str, Any], words: str) -> tuple[str, ...]:
    count = Counter(entry["outcomes"].get(words) for entry in found["cases"])
    return words, found["checks"][words], str(count["pass"]), str(count["fail"])


def _reasons(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """One row for each remedy and reason, without the name of the block in it."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for entry in (entry for entry in entries if entry["outcomes"]["applies"] == "impossible"):
        reason = entry["reasons"]["applies"]
        reason = reason.partition("': ")[2] or reason  # "… cannot be applied to gpt2 block 'transformer.h.0': why"
        setting = entry["setting"] if _can_have(entries, entry) else ""
        remedy = f"{entry['remedy']} ({setting})" if setting else entry["remedy"]
        found = hosts.setdefault((remedy, _general(reason, entry["host"])), [])
        if entry["host"] not in found:
            found.append(entry["host"])
    return [(remedy, ", ".join(names), why) for (remedy, why), names in hosts.items()]


def _can_have(entries: Sequence[Mapping[str, Any]], like: Mapping[str, Any]) -> bool:
    """Whether the host can have the remedy in some other setting."""
    same = [one for one in entries if (one["remedy"], one["host"]) == (like["remedy"], like["host"])]
    return any(one["outcomes"]["applies"] != "impossible" for one in same)


def _general(reason: str, host: str) -> str:
    """The same words for every host: a decoder's family is named in its refusal."""
    start, bracket, rest = reason.partition("for a decoder (")
    return start + "for a decoder" + rest.partition(")")[2] if bracket else reason


def _by_remedy(found: Mapping[str, Any]) -> Iterator[str]:
    checks = list(found["checks"])
    for remedy in dict.fromkeys(entry["remedy"] for entry in found["cases"]):
        mine = [entry for entry in found["cases"] if entry["remedy"] == remedy]
        settings = list(dict.fromkeys(entry["setting"] for entry in mine))
        rows = []
        for host in dict.fromkeys(entry["host"] for entry in mine):
            here = [entry for entry in mine if entry["host"] == host]
            rows.append((host, *(_cell([entry["outcomes"] for entry in here], words) for words in checks)))
        yield f"### {remedy}"
        yield ""
        yield f"Settings: {'; '.join(settings)}."
        yield ""
        yield _table(("host", *map(str, range(1, len(checks) + 1))), rows)
        yield ""


def _cell(outcomes: Sequence[Mapping[str, str]], words: str) -> str:
    """How many settings pass one check on one host.

    >>> _cell([{"applies": "pass", "a": "pass"}, {"applies": "pass", "a": "fail"}, {"applies": "impossible"}], "a")
    '✗ 1/2'
    """
    possible = [one for one in outcomes if one["applies"] != "impossible"]
    if not possible:
        return SIGNS["impossible"]
    count = Counter(one.get(words, "not applicable") for one in possible)
    asked = count["pass"] + count["fail"]
    if not asked:
        return SIGNS["not applicable"]
    return f"{SIGNS['fail' if count['fail'] else 'pass']} {count['pass']}/{asked}"


def _stacked(found: Mapping[str, Any]) -> Iterator[str]:
    """Pairs, of remedies that the host can have alone."""
    refused = [entry for entry in found["pairs"] if entry["outcomes"]["applies"] == "impossible"]
    count = Counter(status for entry in found["pairs"] for status in entry["outcomes"].values())
    yield "## Two at once"
    yield ""
    yield (
        f"Every two remedies, each in its first setting, in one order on {PAIRED[0]} and in the other on {PAIRED[1]}, "
        f"where each is possible alone: {len(found['pairs'])} pairs, {len(refused)} refused; {count['fail']} checks "
        f"fail. Checked: {', '.join(OF_PAIRS)}."
    )
    yield ""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for entry in refused:
        why = entry["reasons"]["applies"].partition("': ")[2]
        rows.setdefault((entry["below"], entry["remedy"], why), []).append(entry["host"])
    yield _table(("first", "then", "on", "why not"), [(a, b, ", ".join(on), why) for (a, b, why), on in rows.items()])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
