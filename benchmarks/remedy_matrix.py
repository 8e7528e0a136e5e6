"""Run every remedy on every host through the harness and write docs/remedies/matrix.md from what was found.

Run it as ``python -m benchmarks.remedy_matrix`` in the repository. The outcomes go to
benchmarks/results/remedy_matrix.json, from which ``--page-only`` writes the page again. A run that was stopped goes on
where it was, by what it left in ``--notes``; once the files are written, the notes are gone. With ``--only`` and
``--hosts`` these remedies and hosts are measured anew, and the rest of the record stays: each line says at which commit
it was measured. ``--uncompiled`` leaves out what takes longest, and the page says where.
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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import transformers
from tests.processor import leave_out_what_is_only_announced
from tests.remedies import checks_lifecycle, checks_tokens, checks_training  # noqa: F401 - register the checks
from tests.remedies.checks_training import inductor
from tests.remedies.distributed import DDP, FSDP2, distributed_cases, run_distributed
from tests.remedies.harness import CHECKS, Case, Outcome, Pair, cases, pairs, run_all, run_pair
from tests.remedies.hosts import BY_NAME
from tests.remedies.settings import SETTINGS

from benchmarks.remedy_matrix_page import COMPILED, PAIRED, SIGNS, failing_checks, page, statuses
from unsmooth.evidence.records import commit
from unsmooth.files import write_whole
from unsmooth.remedies import describe

COMMAND = "python -m benchmarks.remedy_matrix"
INDUCTOR = "compiled by inductor"
# What each check asks, for the page; those without a function of their own are described here.
BESIDE = {
    DDP: "Two processes, two steps: every rank has the mean of the gradients, and no parameter is waited for in vain.",
    FSDP2: "Two processes, sharded block by block: the gradients are those of the whole model, for two steps.",
    INDUCTOR: "Outputs and gradients of the model compiled by inductor without a graph break are those of the model; "
    "once per remedy, on vit or, where that is impossible, on bert or gpt2.",
}
Key = tuple[str, str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything, write both files; 1 where something fails."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--page", type=Path, default=Path("docs/remedies/matrix.md"), help="where the page is written")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/remedy_matrix.json"))
    parser.add_argument("--only", nargs="+", choices=sorted(SETTINGS), help="remedies to run; all where none is named")
    parser.add_argument("--hosts", nargs="+", choices=list(BY_NAME), help="hosts to run; all where none is named")
    parser.add_argument("--uncompiled", action="store_true", help=f"leave out {COMPILED!r}")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--notes", type=Path, default=Path("runs/remedy_matrix.jsonl"), help="what is done so far")
    parser.add_argument("--page-only", action="store_true", help="write the page again from what is saved")
    options = parser.parse_args(arguments)
    if options.page_only:
        found = read(options.out)
    else:
        remedies, hosts = options.only or sorted(SETTINGS), options.hosts or list(BY_NAME)
        run = run_uncompiled if options.uncompiled else run_all
        found = record(remedies, hosts, options.workers, Notes(options.notes), run)
        if options.only or options.hosts:
            found = taken_over(read(options.out), found, remedies, hosts)
        write_whole(options.out, as_json(found))
        options.notes.unlink(missing_ok=True)
    options.page.parent.mkdir(parents=True, exist_ok=True)
    write_whole(options.page, page(found))
    failing = list(failing_checks(found))
    total = Counter(statuses(found))
    print(f"{dict(total)} in {found['seconds']} s; written to {options.page} and {options.out}")
    for line in failing:
        print(f"  {line}")
    return 1 if failing else 0


class Notes:
    """Outcomes by what they are of, a line each, in a file that outlives a run that is stopped.

    Those of another commit are not taken: what they say may no longer be so.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, dict[str, Outcome]] = {}
        self.seconds = 0.0
        for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            line = json.loads(text)
            if line.get("at") == _at():
                self._take(line)

    def _take(self, line: Mapping[str, Any]) -> None:
        self.found[line["of"]] = {words: Outcome(*outcome) for words, outcome in line["outcomes"].items()}
        self.seconds = line["seconds"]

    def all_of(self, tasks: Sequence[Any], run: Callable[[Any], dict[str, Outcome]], pool: Executor) -> list[Any]:
        """Outcomes of tasks in order, of which only those are run that are not noted."""
        before, start = self.seconds, time.perf_counter()
        missing = [task for task in tasks if self._of(task, run) not in self.found]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for task, outcomes in zip(missing, pool.map(run, missing, chunksize=4), strict=True):
                plain = {words: [outcome.status, outcome.reason] for words, outcome in outcomes.items()}
                seconds = before + time.perf_counter() - start
                line = {"of": self._of(task, run), "outcomes": plain, "seconds": seconds, "at": _at()}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
                self._take(line)
        return [self.found[self._of(task, run)] for task in tasks]

    @staticmethod
    def _of(task: Case, run: Callable[[Any], Any]) -> str:
        return f"{run.__name__}: {task.name}, {task.variant}"


def record(
    remedies: Sequence[str],
    hosts: Sequence[str],
    workers: int,
    notes: Notes,
    run: Callable[[Case], dict[str, Outcome]] = run_all,
) -> dict[str, Any]:
    """Everything that was found, for machines."""
    commit()  # read once: at the start
    start, before = time.perf_counter(), notes.seconds
    leave_out_what_is_only_announced()
    alone = [case for case in cases() if case.remedy in remedies and case.host.name in hosts]
    both = [pair for pair in paired() if _is_due(_pair(pair, {}), remedies, hosts)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_quiet) as pool:
        found = dict(zip(map(_key, alone), notes.all_of(alone, run, pool), strict=True))
        stacked = list(zip(both, notes.all_of(both, run_pair, pool), strict=True))
        compiled = [case for case in _compiled(remedies) if case.host.name in hosts]
        for case, outcomes in zip(compiled, notes.all_of(compiled, run_inductor, pool), strict=True):
            found[_key(case)].update(outcomes)
    shared = [case for case in distributed_cases() if case.remedy in remedies and case.host.name in hosts]
    with tempfile.TemporaryDirectory() as folder:
        for key, outcomes in run_distributed(Path(folder), shared).items() if shared else ():
            found[key].update(outcomes)
    return {
        "what": (__doc__ or "").split("\n")[0],
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "seconds": round(before + time.perf_counter() - start),
        "remedies": {name: _described(name) for name in remedies},
        "checks": {words: _meaning(words) for words in [*CHECKS, INDUCTOR, DDP, FSDP2]},
        "cases": [_entry(key, outcomes) for key, outcomes in found.items()],
        "pairs": [_pair(pair, outcomes) for pair, outcomes in stacked],
    }


def taken_over(
    old: Mapping[str, Any], new: Mapping[str, Any], remedies: Sequence[str], hosts: Sequence[str]
) -> dict[str, Any]:
    """What was measured anew in its place among what was measured before."""
    kept = {part: [row for row in old[part] if not _is_due(row, remedies, hosts)] for part in ("cases", "pairs")}
    places = {_key(case): place for place, case in enumerate(cases())}
    rows = [row for row in (*kept["cases"], *new["cases"]) if _row_key(row) in places]
    return {
        **new,
        "seconds": old["seconds"] + new["seconds"],
        "remedies": {name: new["remedies"].get(name) or old["remedies"][name] for name in sorted(SETTINGS)},
        "cases": sorted(rows, key=lambda row: places[_row_key(row)]),
        "pairs": [*kept["pairs"], *new["pairs"]],
    }


def _is_due(row: Mapping[str, Any], remedies: Sequence[str], hosts: Sequence[str]) -> bool:
    """Whether a case, or a pair of two of the remedies, is to be measured."""
    return row["remedy"] in remedies and row.get("below", row["remedy"]) in remedies and row["host"] in hosts


def _row_key(row: Mapping[str, Any]) -> Key:
    return row["remedy"], row["setting"], row["host"]


def paired() -> list[Pair]:
    """Every two remedies, in one order on one host and in the other on the other."""
    first, second = (pairs(BY_NAME[host]) for host in PAIRED)
    return [pair for pair in first if pair.below.remedy < pair.remedy] + [
        pair for pair in second if pair.below.remedy > pair.remedy
    ]


def as_json(found: Mapping[str, Any]) -> str:
    """One line for each case, its outcomes one letter for each check."""
    words = ["applies", *found["checks"]]
    short = {"letters": {status[0]: status for status in SIGNS}, "order": words}
    for part in ("cases", "pairs"):
        rows = [
            {**entry, "outcomes": "".join(entry["outcomes"].get(one, "-")[0] for one in words)} for entry in found[part]
        ]
        short[part] = [json.dumps(row, ensure_ascii=False) for row in rows]
    text = json.dumps({**found, **short}, indent=1, ensure_ascii=False)
    for part in ("cases", "pairs"):  # each row is a line already
        for row in short[part]:
            text = text.replace(json.dumps(row, ensure_ascii=False), row, 1)
    return text + "\n"


def read(path: Path) -> dict[str, Any]:
    """What `as_json` wrote."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for entry in [*found["cases"], *found["pairs"]]:
        letters = zip(found["order"], entry["outcomes"], strict=True)
        entry["outcomes"] = {words: found["letters"][letter] for words, letter in letters if letter != "-"}
    return found


def _described(name: str) -> dict[str, str]:
    said = describe(name)
    neutral = "none" if said.neutral is None else ", ".join(f"{key}={value!r}" for key, value in said.neutral.items())
    return {"paper": said.paper, "neutral": neutral, "causal": said.causal, "folds": said.folds or "no"}


def run_uncompiled(case: Case) -> dict[str, Outcome]:
    """All checks but the one that takes longest."""
    return run_all(case, without=(COMPILED,))


def run_inductor(case: Case) -> dict[str, Outcome]:
    """The slowest check, once per remedy."""
    try:
        inductor(case)
    except Exception as error:
        return {INDUCTOR: Outcome("fail", f"{type(error).__name__}: {error}")}
    return {INDUCTOR: Outcome("pass")}


def _compiled(remedies: Sequence[str]) -> list[Case]:
    chosen = []
    for remedy in remedies:
        variant, setting = next(iter(SETTINGS[remedy].items()))
        able = [host for host in ("vit", "bert", "gpt2") if host not in setting.refused_by]
        chosen += [Case(remedy, variant, BY_NAME[host]) for host in able[:1]]
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
    return {"remedy": key[0], "setting": key[1], "host": key[2], "outcomes": statuses, "reasons": reasons, "at": _at()}


def _at() -> str:
    """The commit, with a + where the library was changed since."""
    found = commit()
    return f"{found['commit'] or 'unknown'}"[:7] + ("+" if found["changed"] else "")


def _pair(pair: Pair, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    return {"below": pair.below.remedy, **_entry(_key(pair), outcomes)}


if __name__ == "__main__":
    sys.exit(main())
