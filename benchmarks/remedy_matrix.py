"""Run every remedy on every host through the harness and write docs/remedies/matrix.md from what was found.

Run it as ``python -m benchmarks.remedy_matrix`` in the repository. The outcomes go to
benchmarks/results/remedy_matrix.json, from which ``--page-only`` writes the page again. A run that was stopped goes on
where it was, by what it left in ``--notes``; once the files are written, the notes are gone.
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

from benchmarks.remedy_matrix_page import PAIRED, SIGNS, failing_checks, page, statuses
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
    parser.add_argument("--only", nargs="*", help="remedies to run; all where none is named")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--notes", type=Path, default=Path("runs/remedy_matrix.jsonl"), help="what is done so far")
    parser.add_argument("--page-only", action="store_true", help="write the page again from what is saved")
    options = parser.parse_args(arguments)
    if options.page_only:
        found = read(options.out)
    else:
        found = record(options.only or sorted(SETTINGS), options.workers, Notes(options.notes))
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

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, dict[str, Outcome]] = {}
        self.seconds = 0.0
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            self._take(json.loads(line))

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
                line = {"of": self._of(task, run), "outcomes": plain, "seconds": seconds}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
                self._take(line)
        return [self.found[self._of(task, run)] for task in tasks]

    @staticmethod
    def _of(task: Case, run: Callable[[Any], Any]) -> str:
        return f"{run.__name__}: {task.name}, {task.variant}"


def record(remedies: Sequence[str], workers: int, notes: Notes) -> dict[str, Any]:
    """Everything that was found, for machines."""
    start, before = time.perf_counter(), notes.seconds
    leave_out_what_is_only_announced()
    alone = [case for case in cases() if case.remedy in remedies]
    both = [pair for pair in paired() if {pair.remedy, pair.below.remedy} <= set(remedies)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_quiet) as pool:
        found = dict(zip(map(_key, alone), notes.all_of(alone, run_all, pool), strict=True))
        stacked = list(zip(both, notes.all_of(both, run_pair, pool), strict=True))
        compiled = _compiled(remedies)
        for case, outcomes in zip(compiled, notes.all_of(compiled, run_inductor, pool), strict=True):
            found[_key(case)].update(outcomes)
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
        "seconds": round(before + time.perf_counter() - start),
        "remedies": {name: _described(name) for name in remedies},
        "checks": {words: _meaning(words) for words in [*CHECKS, INDUCTOR, DDP, FSDP2]},
        "cases": [_entry(key, outcomes) for key, outcomes in found.items()],
        "pairs": [_pair(pair, outcomes) for pair, outcomes in stacked],
    }


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
    return {"remedy": key[0], "setting": key[1], "host": key[2], "outcomes": statuses, "reasons": reasons}


def _pair(pair: Pair, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    return {"below": pair.below.remedy, **_entry(_key(pair), outcomes)}


if __name__ == "__main__":
    sys.exit(main())
