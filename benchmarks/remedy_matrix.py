"""Run every remedy on every host through the harness and write docs/remedies/matrix.md from what was found.

Run it as ``python -m benchmarks.remedy_matrix`` in the repository. The outcomes go to
benchmarks/results/remedy_matrix.json, from which ``--page-only`` writes the page again.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import transformers
from tests.remedies import checks_lifecycle, checks_tokens, checks_training  # noqa: F401 - register the checks
from tests.remedies.checks_training import inductor
from tests.remedies.distributed import DDP, FSDP2, distributed_cases, run_distributed
from tests.remedies.harness import CHECKS, OF_PAIRS, Case, Outcome, Pair, cases, pairs, run_all, run_pair
from tests.remedies.hosts import BY_NAME, HOSTS
from tests.remedies.settings import SETTINGS

from unsmooth.files import write_whole

COMMAND = "python -m benchmarks.remedy_matrix"
PAIRED = ("bert", "gpt2")
INDUCTOR = "compiled by inductor"
# What each check asks, for the page; those without a function of their own are described here.
BESIDE = {
    DDP: "Two processes, two steps: every rank has the mean of the gradients, and no parameter is waited for in vain.",
    FSDP2: "Two processes, sharded block by block: the gradients are those of the whole model, for two steps.",
    INDUCTOR: "Outputs and gradients of the model compiled by inductor without a graph break are those of the model; "
    "once per remedy, on vit or, where that is impossible, on bert.",
}
SIGNS = {"pass": "✓", "fail": "✗", "impossible": "—", "not applicable": "·"}

Key = tuple[str, str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything, write both files; 1 where something fails."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--page", type=Path, default=Path("docs/remedies/matrix.md"), help="where the page is written")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/remedy_matrix.json"))
    parser.add_argument("--only", nargs="*", help="remedies to run; all where none is named")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--page-only", action="store_true", help="write the page again from what is saved")
    options = parser.parse_args(arguments)
    if options.page_only:
        found = json.loads(options.out.read_text())
    else:
        found = record(options.only or sorted(SETTINGS), options.workers)
        write_whole(options.out, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    options.page.parent.mkdir(parents=True, exist_ok=True)
    write_whole(options.page, page(found))
    failing = list(_failing(found))
    total = Counter(_statuses(found))
    print(f"{dict(total)} in {found['seconds']} s; written to {options.page} and {options.out}")
    for line in failing:
        print(f"  {line}")
    return 1 if failing else 0


def record(remedies: Sequence[str], workers: int) -> dict[str, Any]:
    """Everything that was found, for machines."""
    start = time.perf_counter()
    alone = [case for case in cases(HOSTS) if case.remedy in remedies]
    both = [
        pair for host in PAIRED for pair in pairs(BY_NAME[host]) if {pair.remedy, pair.below.remedy} <= set(remedies)
    ]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_quiet) as pool:
        found = dict(zip(map(_key, alone), pool.map(run_all, alone, chunksize=4), strict=True))
        stacked = list(zip(both, pool.map(run_pair, both, chunksize=4), strict=True))
        for case, outcome in zip(compiled := _compiled(remedies), pool.map(run_inductor, compiled), strict=True):
            found[_key(case)][INDUCTOR] = outcome
    shared = [case for case in distributed_cases() if case.remedy in remedies]
    with tempfile.TemporaryDirectory() as folder:
        for key, outcomes in run_distributed(Path(folder), shared).items():
            found[key].update(outcomes)
    return {
        "what": (__doc__ or "").split("\n")[0],
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "seconds": round(time.perf_counter() - start),
        "checks": {words: _meaning(words) for words in [*CHECKS, INDUCTOR, DDP, FSDP2]},
        "cases": [_entry(key, outcomes) for key, outcomes in found.items()],
        "pairs": [_pair(pair, outcomes) for pair, outcomes in stacked],
    }


def run_inductor(case: Case) -> Outcome:
    """The slowest check, once per remedy."""
    try:
        inductor(case)
    except Exception as error:
        return Outcome("fail", f"{type(error).__name__}: {error}")
    return Outcome("pass")


def _compiled(remedies: Sequence[str]) -> list[Case]:
    chosen = []
    for remedy in remedies:
        variant, setting = next(iter(SETTINGS[remedy].items()))
        host = "bert" if "vit" in setting.refused_by else "vit"
        chosen.append(Case(remedy, variant, BY_NAME[host]))
    return chosen


def _quiet() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def _key(case: Case) -> Key:
    return case.remedy, case.variant, case.host.name


def _meaning(words: str) -> str:
    return BESIDE[words] if words in BESIDE else " ".join((CHECKS[words].__doc__ or "").split())


def _entry(key: Key, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    reasons = {words: outcome.reason for words, outcome in outcomes.items() if outcome.status in ("fail", "impossible")}
    statuses = {words: outcome.status for words, outcome in outcomes.items()}
    return {"remedy": key[0], "setting": key[1], "host": key[2], "outcomes": statuses, "reasons": reasons}


def _pair(pair: Pair, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    return {"below": pair.below.remedy, **_entry(_key(pair), outcomes)}


def _statuses(found: Mapping[str, Any]) -> Iterator[str]:
    for entry in [*found["cases"], *found["pairs"]]:
        yield from (status for words, status in entry["outcomes"].items() if (words, status) != ("applies", "pass"))


def _failing(found: Mapping[str, Any]) -> Iterator[str]:
    for entry in [*found["cases"], *found["pairs"]]:
        for words, status in entry["outcomes"].items():
            if status == "fail":
                who = " + ".join(name for name in (entry.get("below"), entry["remedy"]) if name)
                yield f"{who} ({entry['setting']}) on {entry['host']}, {words}: {entry['reasons'][words]}"


def page(found: Mapping[str, Any]) -> str:
    """The page for people."""
    total = Counter(_statuses(found))
    failing = list(_failing(found))
    impossible = [entry for entry in found["cases"] if entry["outcomes"]["applies"] == "impossible"]
    possible = len(found["cases"]) - len(impossible)
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines = [
        "# Remedies and hosts",
        "",
        f"Every remedy, in each of its settings, on every host: {len(found['cases'])} combinations, of which "
        f"{possible} are possible and {len(impossible)} are refused with a reason before anything is touched. Of the "
        f"checks {total['pass']} pass and {total['fail']} fail; {total['not applicable']} do not apply (a vision model "
        f"has no padding, an encoder no cache). Written by `make matrix` ({versions}).",
        "",
        "All hosts are tiny: three layers of width 32, random weights. New parameters are moved away from where they "
        "start, as training would, in every check but those of the neutral setting, of undo and of plain checkpoints. "
        "“To the bit” means equal in every bit; elsewhere numbers are compared to 2e-5 of the largest (folded "
        "weights and loaded checkpoints to 1e-4). `nn.TransformerEncoder` is compared with torch's fused layer off, "
        "which rounds otherwise.",
        "",
        "## What fails",
        "",
        *([f"- {line}" for line in failing] or ["Nothing."]),
        "",
        "## What is asked",
        "",
        _table(("check", "what it asks", "pass", "fail"), [_check_row(found, words) for words in found["checks"]]),
        "",
        "## What is impossible",
        "",
        _table(("remedy", "hosts", "why"), _reasons(impossible)),
        "",
        "## Remedy by remedy",
        "",
        "Settings that pass, of those that are possible; · where a check does not apply, — where none is possible.",
        "",
        *_by_remedy(found),
        *_stacked(found),
        "",
    ]
    return "\n".join(lines)


def _check_row(found: Mapping[str, Any], words: str) -> tuple[str, ...]:
    count = Counter(entry["outcomes"].get(words) for entry in found["cases"])
    return words, found["checks"][words], str(count["pass"]), str(count["fail"])


def _reasons(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """One row for each remedy and reason, without the name of the block in it."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        reason = entry["reasons"]["applies"]
        reason = reason.partition("': ")[2] or reason  # "… cannot be applied to gpt2 block 'transformer.h.0': why"
        setting = entry["setting"] if len(_settings_refused(entries, entry)) < len(SETTINGS[entry["remedy"]]) else ""
        remedy = f"{entry['remedy']} ({setting})" if setting else entry["remedy"]
        found = hosts.setdefault((remedy, _general(reason, entry["host"])), [])
        if entry["host"] not in found:
            found.append(entry["host"])
    return [(remedy, ", ".join(names), why) for (remedy, why), names in hosts.items()]


def _settings_refused(entries: Sequence[Mapping[str, Any]], like: Mapping[str, Any]) -> set[str]:
    same = [one for one in entries if (one["remedy"], one["host"]) == (like["remedy"], like["host"])]
    return {one["setting"] for one in same}


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
        yield _table(("host", *checks), rows)
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
        f"Every remedy on top of every other, each in its first setting, on {' and '.join(PAIRED)} where each is "
        f"possible alone: {len(found['pairs'])} pairs, {len(refused)} refused; {count['fail']} checks fail. Checked: "
        f"{', '.join(OF_PAIRS)}."
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


if __name__ == "__main__":
    sys.exit(main())
