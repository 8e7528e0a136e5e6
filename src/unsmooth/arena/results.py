"""The results of an arena: its files, scores, the learning rate that they choose, and whether they are of one arena."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unsmooth.arena.plan import Entrant, Plan, Settled, slug
from unsmooth.errors import UnsmoothError, expected
from unsmooth.evidence.rates import best, beyond, on_edge
from unsmooth.evidence.records import Trained, differing_settings, read_results, write_json
from unsmooth.files import check_writable
from unsmooth.training import Config, RunFolder
from unsmooth.training.plain import to_plain
from unsmooth.training.stopwatch import Timing


@dataclass(frozen=True)
class ArenaFolder:
    """Where everything about an arena lies.

    OUT/results/MODEL/model.json                      how many steps its runs make, and why
    OUT/results/MODEL/REMEDY/timing.json              what a step costs
    OUT/results/MODEL/REMEDY/rate-0.001.json          a run that chooses a rate
    OUT/results/MODEL/REMEDY/seed-0-rate-0.001.json   a run that is scored
    OUT/results/MODEL/REMEDY/trouble.json             why there is none: refused, or failed
    OUT/runs/MODEL/REMEDY/seed-0-rate-0.001/          the run itself

    Args:
        path: OUT. All that is needed to go on, but for runs that are under way.
        apart: Folder of the runs where it is not in OUT: they are large.
    """

    path: Path
    apart: Path | None = None

    @property
    def runs(self) -> Path:
        """Of training runs."""
        return self.apart or self.path / "runs"

    @property
    def begun(self) -> bool:
        """Whether anything was settled here, or is about to be."""
        return (self.path / "results").exists()

    def check_writable(self) -> None:
        """Create what is missing and try to write there, before any work is done for it."""
        try:
            for path in (self.path, self.apart):
                if path is not None:
                    check_writable(path)
                    path.mkdir(parents=True, exist_ok=True)
        except UnsmoothError:
            self.forget_unbegun()
            raise

    def forget_unbegun(self) -> None:
        """Take the folders away again where nothing could be begun in them."""
        for path in (self.path, self.apart) if not self.begun else ():
            with suppress(OSError):  # somebody's own files
                if path is not None:
                    (path / ".lock").unlink(missing_ok=True)
                    path.rmdir()

    def written(self) -> dict[Path, int]:
        """Every file of results and when it was written, to tell whether any is new."""
        found = dict[Path, int]()
        for path in (self.path / "results").rglob("*.json"):
            with suppress(FileNotFoundError):  # another process has just taken it away
                found[path] = path.stat().st_mtime_ns
        return found

    def unnamed(self, plan: Plan) -> list[str]:
        """Places of entrants that have scores here and are not in the plan, such as those of an earlier command."""
        named = {entrant.place for entrant in plan.entrants}
        scored = {path.parent for path in (self.path / "results").glob("*/*/seed-*.json")}
        return sorted({f"{path.parent.name}/{path.name}" for path in scored} - named)

    def results(self, entrant: Entrant) -> Path:
        """Of one entrant."""
        return self.path / "results" / entrant.place

    def model(self, name: str) -> dict[str, Any] | None:
        """What was settled for a model before its first run."""
        return read_results(self._model(name))

    def write_model(self, name: str, settled: dict[str, Any]) -> None:
        """Once; its runs rest on it."""
        write_json(self._model(name), settled)

    def _model(self, name: str) -> Path:
        return self.path / "results" / slug(name) / "model.json"

    def timing(self, entrant: Entrant) -> Timing | None:
        """What a step costs."""
        return read_results(self.results(entrant) / "timing.json", Timing)

    def write_timing(self, entrant: Entrant, timing: Timing) -> None:
        """Put it in its place."""
        write_json(self.results(entrant) / "timing.json", asdict(timing))

    def outcome(self, entrant: Entrant, run: str) -> Trained | None:
        """What is kept of a run, such as "rate-0.001"; None where it did not come to its end yet."""
        return read_results(self.results(entrant) / f"{run}.json", Trained)

    def kept(self, entrant: Entrant) -> list[str]:
        """Names of all runs that came to their end, those of rates that are not looked at any more included."""
        found = self.results(entrant).glob("*.json")
        return sorted(path.stem for path in found if path.stem.startswith(("rate-", "seed-")))

    def write_outcome(self, entrant: Entrant, run: str, trained: Trained) -> None:
        """Put it in its place; only then what the run does not need any more is removed."""
        write_json(self.results(entrant) / f"{run}.json", asdict(trained))
        self.tidy(entrant, run)

    def tidy(self, entrant: Entrant, run: str) -> None:
        """Remove checkpoints of a run that is over; of one that chose a rate the weights too."""
        folder = RunFolder(self.runs / entrant.place / run)
        shutil.rmtree(folder.checkpoints, ignore_errors=True)
        if run.startswith("rate-"):
            shutil.rmtree(folder.final, ignore_errors=True)
            shutil.rmtree(folder.average, ignore_errors=True)

    def trouble(self, entrant: Entrant) -> dict[str, Any] | None:
        """Why an entrant has no runs: its `state`, "refused" or "failed", the `reason`, the `call` that found it."""
        return read_results(self.results(entrant) / "trouble.json")

    def write_trouble(self, entrant: Entrant, state: str, reason: str, call: str) -> None:
        """Say why there is nothing; another call tries again."""
        write_json(self.results(entrant) / "trouble.json", {"state": state, "reason": reason, "call": call})

    def forget_trouble(self, entrant: Entrant) -> None:
        """It is over."""
        (self.results(entrant) / "trouble.json").unlink(missing_ok=True)


_BITS = "bits_per_character"


def score_of(run: Trained, name: str, beside: Iterable[Trained] = ()) -> float | None:
    """A metric of the last evaluation; of a run that lost its numbers, what guessing comes to.

    None where nothing can be said: such a run counts in no mean, and is told as a failure.

    Args:
        run: What is kept of it.
        name: The metric.
        beside: Other runs that were evaluated on the same samples.
    """
    if run.made.get("state") == "stopped":
        return guessing(run.config, name, (run, *beside))
    found = run.evaluations[-1].get(name) if run.evaluations else None
    return float(found) if found is not None and math.isfinite(found) else None


def guessing(config: Mapping[str, Any], name: str, evaluated: Iterable[Trained] = ()) -> float | None:
    """What a model that knows nothing scores: all classes, or all words, equally likely; None where nobody can tell.

    >>> guessing({"network": {"classes": 4}}, "accuracy"), guessing({"network": {"vocabulary": 1}}, "loss")
    (0.25, 0.0)
    >>> guessing({"network": {"vocabulary": 256}, "data": {"tokenizer": "bytes"}}, "bits_per_character")
    8.0
    """
    network = config["network"]
    count = network.get("classes", network.get("vocabulary"))
    if not count or config.get("task") == "superglue":  # whose answers are not the words of its network
        return None
    if name == _BITS:
        size = _bytes_of_a_token(config, evaluated)
        return math.log2(count) / size if size else None
    return {"accuracy": 1 / count, "loss": math.log(count), "perplexity": float(count)}.get(name)


def _bytes_of_a_token(config: Mapping[str, Any], evaluated: Iterable[Trained]) -> float | None:
    """On average over the text of an evaluation, which nats per token and bits per byte tell together."""
    if config.get("data", {}).get("tokenizer") == "bytes":
        return 1.0
    for line in (line for run in evaluated for line in run.evaluations):
        nats, bits = line.get("loss"), line.get(_BITS)
        if nats and bits and math.isfinite(nats) and math.isfinite(bits):
            return float(nats) / (float(bits) * math.log(2))
    return None


@dataclass(frozen=True)
class Choice:
    """The rate, and what it was chosen by.

    Attributes:
        rate: The best of those that were tried; of several, the lowest.
        edge: Whether it is the highest or the lowest of them, so that a better one might lie beyond.
        scores: Rate to score, None where there is none; empty where the grid has a single rate.
        lost: Whether the loss stopped being a number at every rate: there is nothing to be scored.
        reason: What happened at the lowest rate then.
    """

    rate: float
    edge: bool = False
    scores: Mapping[float, float | None] = field(default_factory=dict)
    lost: bool = False
    reason: str = ""


def rate_run(rate: float) -> str:
    """What the run that tries a rate is called.

    >>> rate_run(0.0003)
    'rate-0.0003'
    """
    return f"rate-{rate:g}"


def seed_run(seed: int, rate: float) -> str:
    """What the run of a seed is called; those of a rate that is not chosen any more are left where they are.

    >>> seed_run(0, 0.0003)
    'seed-0-rate-0.0003'
    """
    return f"seed-{seed}-{rate_run(rate)}"


def chosen(plan: Plan, folder: ArenaFolder, entrant: Entrant) -> Choice | None:
    """The rate of an entrant; None where not all rates were tried yet."""
    return _choice(plan, _tried(plan, folder, entrant))


def wanted_runs(plan: Plan, folder: ArenaFolder, entrant: Entrant) -> dict[str, tuple[float, int]]:
    """Name to rate and seed of every run that is known to be wanted by now, those that are done included."""
    tried = _tried(plan, folder, entrant)
    found = {rate_run(rate): (rate, plan.probe_seed) for rate in tried}
    choice = _choice(plan, tried)
    if choice is not None and not choice.lost:
        found |= {seed_run(seed, choice.rate): (choice.rate, seed) for seed in plan.seeds}
    return found


def _tried(plan: Plan, folder: ArenaFolder, entrant: Entrant) -> dict[float, Trained | None]:
    """What came of every rate of the grid and, once that is known and the best lies at an end, of those beyond it.

    Of a single rate nothing: it is taken as it is.
    """
    if len(plan.rates) == 1:
        return {}
    tried = {rate: folder.outcome(entrant, rate_run(rate)) for rate in plan.rates}
    for _ in range(plan.widen):
        choice = _choice(plan, tried)
        if choice is None or not choice.edge:
            break
        rate = beyond(choice.rate, tried)
        tried[rate] = folder.outcome(entrant, rate_run(rate))
    return tried


def _choice(plan: Plan, tried: Mapping[float, Trained | None]) -> Choice | None:
    """The best of what was tried; None where something is missing."""
    if not tried:
        return Choice(plan.rates[0])
    known = {rate: run for rate, run in tried.items() if run is not None}
    if len(known) < len(tried):
        return None
    scores = {rate: score_of(run, plan.score, known.values()) for rate, run in sorted(known.items())}
    stopped = {rate for rate, run in known.items() if run.made.get("state") == "stopped"}
    worst = -math.inf if plan.more else math.inf  # a rate that breaks a model is no choice, however little others learn
    counted = {rate: worst if score is None or rate in stopped else score for rate, score in scores.items()}
    rate, lost = best(counted, more=plan.more), len(stopped) == len(known)
    reason = str(known[min(known)].made.get("reason") or "") if lost else ""
    return Choice(rate, on_edge(rate, known), scores, lost, reason)


def scored(plan: Plan, folder: ArenaFolder, entrant: Entrant, choice: Choice | None) -> dict[int, Trained]:
    """Outcomes by seed that were trained at the chosen rate."""
    if choice is None:
        return {}
    found = {seed: folder.outcome(entrant, seed_run(seed, choice.rate)) for seed in plan.seeds}
    return {seed: run for seed, run in found.items() if run is not None}


def outcomes(plan: Plan, folder: ArenaFolder, entrant: Entrant) -> dict[str, Trained]:
    """What came of the runs that are wanted, by name; without those that are not at their end yet."""
    found = {run: folder.outcome(entrant, run) for run in wanted_runs(plan, folder, entrant)}
    return {run: trained for run, trained in found.items() if trained is not None}


def complete(plan: Plan, folder: ArenaFolder, entrant: Entrant) -> bool:
    """Whether there is nothing left to train for an entrant."""
    choice = chosen(plan, folder, entrant)
    if choice is None:
        return False
    return choice.lost or len(scored(plan, folder, entrant, choice)) == len(plan.seeds)


def left_over(plan: Plan, folder: ArenaFolder, call: str) -> list[Entrant]:
    """Who is not done yet, nor known to be unable to."""
    return [
        entrant
        for entrant in plan.entrants
        if not is_unable(folder.trouble(entrant), call) and not complete(plan, folder, entrant)
    ]


def is_unable(trouble: Mapping[str, Any] | None, call: str) -> bool:
    """Whether there is nothing more to be tried in a call: its model refuses it, or it failed in this very call.

    >>> [is_unable({"state": state, "call": "of another"}, "mine") for state in ("refused", "failed")]
    [True, False]
    """
    # Of several commands the last one to look writes a refusal down, which is the same for all of them.
    return trouble is not None and (trouble["state"] == "refused" or trouble["call"] == call)


class OtherResultsError(UnsmoothError):
    """The folder has results that cannot stand beside those that are wanted."""


def other_results(folder: ArenaFolder, what: str, got: str, first: str = "") -> OtherResultsError:
    """Say so, with what can be done about it.

    Args:
        folder: Of the arena.
        what: What would do.
        got: What is there.
        first: What to try before another folder.
    """
    # Both: runs are taken up where there are no results, and have settings of their own.
    rest = f"another --out, or removing {folder.path / 'results'} and {folder.runs}"
    return OtherResultsError(str(expected(what, got, f"{first}, {rest}" if first else rest)))


def check_settings(plan: Plan, folder: ArenaFolder, entrant: Entrant, base: Settled) -> None:
    """Refuse results of an entrant that have other settings than those of now."""
    for run, (rate, seed) in wanted_runs(plan, folder, entrant).items():
        if (found := folder.outcome(entrant, run)) is None:
            continue
        if differing := differing_settings(found.config, plan.settings(entrant, base, rate, seed)):
            got, first = f"others for {entrant.place}/{run} ({', '.join(differing)})", ""
            if "data.hold_out" in differing:
                first = f"--hold-out {found.config['data'].get('hold_out', 0.0):g} as then"  # younger than some results
            raise other_results(folder, "results with the settings of now", got, first)


def check_begun(folder: ArenaFolder, entrant: Entrant, wanted: Mapping[str, Config]) -> None:
    """Refuse to take up runs that were begun with other settings, in words that fit an arena.

    Args:
        folder: Of the arena.
        entrant: Whose runs.
        wanted: Name of a run, such as "seed-0", to what it is to be.
    """
    for run, config in wanted.items():
        path = folder.runs / entrant.place / run
        if not (path / "config.json").exists():
            continue
        if differing := differing_settings(to_plain(RunFolder(path).config()), config, everything=True):
            got = f"one with others ({', '.join(differing)})"
            what = f"a run with the settings of now in {path}"
            raise other_results(folder, what, got, f"the settings of then, removing {path}")


def check_one_data(plan: Plan, folder: ArenaFolder, model: str) -> None:
    """Refuse results of a model on different data: no comparison of them would say anything about remedies."""
    first: dict[float, tuple[str, Mapping[str, Any]]] = {}
    for place, data in _data(plan, folder, model):
        before, known = first.setdefault(_held_out(data), (place, data))
        if known["digest"] != data["digest"]:
            got = f"{_called(known)} for {before}, {_called(data)} for {place}"
            raise other_results(folder, f"all results of {model} on the same data", got)


def check_data(plan: Plan, folder: ArenaFolder, model: str, data: Mapping[str, Any]) -> bool:
    """Refuse results of a model on other data than these, as a task describes them.

    Returns:
        Whether any were on the same samples: those of runs that hold some out may be known by other names.
    """
    same = False
    for place, known in _data(plan, folder, model):
        if _held_out(known) != _held_out(data):
            continue
        if known["digest"] != data.get("digest"):
            got = f"{_called(known)} for {place}"
            raise other_results(
                folder, f"results of {model} on the data of now ({_called(data)})", got, "the --data of then"
            )
        same = True
    return same


def on_all_samples(plan: Plan, folder: ArenaFolder, model: str) -> bool:
    """Whether there are results of runs that held nothing out, and that say on which data they were."""
    return any(not _held_out(data) for _, data in _data(plan, folder, model))


def _data(plan: Plan, folder: ArenaFolder, model: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where, and on which data, wanted by now or not; without results that are too old to say."""
    for entrant in plan.on(model):
        for run in folder.kept(entrant):
            found = folder.outcome(entrant, run)
            data = found.made.get("data") if found else None
            if isinstance(data, Mapping) and data.get("digest"):
                yield f"{entrant.place}/{run}", data


def _held_out(data: Mapping[str, Any]) -> float:
    return float(data.get("hold_out") or 0.0)


def _called(data: Mapping[str, Any]) -> str:
    return f"made-up data {data['digest']}" if data.get("synthetic") else f"{data.get('name')} {data.get('digest')}"
