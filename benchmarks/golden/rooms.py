"""What the rest of the library writes and reads: trainings, arenas, evidence, theory, the monitor, the command."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.golden.digest import Scrub
from unsmooth import cli, theory
from unsmooth.evidence.grid import registered
from unsmooth.monitor import Monitor, read_watched
from unsmooth.training import RECIPES, find_runs, override, read_run, recipe, resume, train

RESULTS = Path(__file__).parents[2] / "evidence"
Part = Iterator[tuple[str, Any]]
SHORT: dict[str, Any] = {
    "engine.device": "cpu",
    "engine.deterministic": True,
    "log_every": 1,
    "evaluate_every": 2,
    "checkpoint_every": 2,
    "measuring.every": 2,
    "measuring.at": (),
    "measuring.sequences": 4,
    "data.test_limit": 16,
}
LISTED = ("metrics", "presets", "models", "remedies", "losses", "posthoc", "recipes", "claims", "studies", "plugins")
REMEDY = {"vit_cifar100": ("sharpen",), "xl_wt103": ("deescalate(tau=0.5)",), "vit_cifar10": ("layerscale",)}


def trainings(folder: Path) -> Part:
    """Every recipe for a few steps, and one that is paused and taken up again; all files, and what is read back."""
    scrub = Scrub(folder)
    for name in RECIPES:
        base = recipe(name, "tiny")
        images = {"data.train_limit": 48} if base.task == "images" else {}
        short = {**SHORT, **images, "steps": 4, "epochs": None, "batch": 12, "micro_batch": 6, "ramp": 0.0}
        short |= {"data.path": _superglue(folder / "glue")} if name == "superglue" else {}
        config = override(base, {**short, "schedule.warmup": 1, "remedies": REMEDY.get(name, ()), "ema": 0.5})
        train(config, folder / name)
        yield name, scrub.files(folder / name)
        read = read_run(folder / name)
        yield f"{name}, read", [scrub.content(read.training), scrub.content(read.evaluations), read.spectra]
    added = override(config, {"losses": ("cosine(weight=0.1)",), "engine.precision": "float64"})
    train(added, folder / "paused", seeds=2, minutes=0.0)
    yield "paused", scrub.files(folder / "paused")
    resume(folder / "paused")
    yield "taken up again", scrub.files(folder / "paused")
    yield "runs found", [scrub.text(str(path)) for path in find_runs(folder / "paused")]
    for file in folder.rglob("*.json*"):  # the page shows how fast they were
        file.write_text(
            re.sub(r'("(?:train/)?(?:samples_per_second|seconds)": )[\d.e+-]+', r"\g<1>1.0", file.read_text())
        )
    runs = [str(folder / "paused"), str(folder / "vit_cifar10")]
    yield "said of their page", _said(scrub, "report", *runs, "--out", f"{folder}/page.html")
    yield "their page", scrub.file(folder / "page.html")


def _superglue(folder: Path) -> str:
    """CommitmentBank with made-up sentences."""
    for split, count in (("train", 24), ("val", 12)):
        rows = [
            {"premise": f"Word {index % 5} stands.", "hypothesis": f"It is {index % 3}.", "label": label, "idx": index}
            for index, label in zip(range(count), ("entailment", "contradiction", "neutral") * count, strict=False)
        ]
        path = folder / "CB" / f"{split}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def arena(folder: Path) -> Part:
    """Two remedies, one of which is refused, and a choice of rates: results, table, page."""
    scrub = Scrub(folder)
    settings = ["data.train_limit=120", "data.test_limit=16", "batch=8", "engine.device=cpu", "measuring.sequences=4"]
    words = [
        "arena",
        "vit_cifar10",
        "--size",
        "tiny",
        "--hold-out",
        "0.2",
        "--remedies",
        "deescalate,layernorm_scaling",
        "--seeds",
        "2",
    ]
    words += ["--budget", "3steps", "--rates", "1e-3,1e-2", "--widen", "1", "--out", str(folder / "arena")]
    words += [part for one in settings for part in ("--set", one)]
    yield "carried out", _said(scrub, *words, "--json")
    yield "taken up again", _said(scrub, *words)
    yield "results", scrub.files(folder / "arena" / "results")


def evidence(folder: Path) -> Part:
    """Claims at the smallest scale; verdicts, pages and digests of what is registered and published."""
    scrub = Scrub(folder)
    out = ["--out", str(folder / "evidence"), "--runs", str(folder / "runs"), "--device", "cpu"]
    yield "all claims", _said(scrub, "evidence", "run", "all", *out)
    yield "what they wrote", scrub.files(folder / "evidence")
    for name in sorted(path.stem for path in _registrations()):
        found = registered(name)
        yield f"registration {name}", [found.digest, sorted(map(str, found.pieces))]
    published = ["--results", str(RESULTS)]
    yield "published verdicts", _said(scrub, "evidence", *published, "--json")
    yield "published verdicts as a table", _said(scrub, "evidence", *published)
    yield "studies", _said(scrub, "evidence", "studies", *published, "--json")
    yield "one claim", _said(scrub, "evidence", "show", "steering-shows", *published)
    yield "said of the page", _said(scrub, "evidence", "page", *published, "--out", f"{folder}/evidence.html")
    yield "the page", scrub.file(folder / "evidence.html")


def _registrations() -> list[Path]:
    from unsmooth.evidence import grid

    return sorted((Path(grid.__file__).parent / "registrations").glob("*.json"))


def laboratory(folder: Path) -> Part:
    """The idealised layer: trajectories, predictions, modes and outcomes."""
    for seed in range(6):
        tokens = torch.randn(7, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        h = torch.randn(5, 5, generator=torch.Generator().manual_seed(9 + seed), dtype=torch.float64) / 5
        maps = {
            "random": theory.random_attention(7, seed=seed),
            "causal": theory.causal_attention(7, seed=seed),
            "cyclic": theory.cyclic_attention(7),
            "two groups": theory.two_group_attention(4, 3, seed=seed),
        }
        for name, attention in maps.items():
            run = theory.iterate(tokens, attention, h, depth=60)
            found = [run, theory.predict(attention, h), theory.modes(attention, h), theory.outcome(run)]
            normed = theory.iterate(tokens, attention, h, depth=20, norm="post", norm_kind="rms")
            yield f"{name}, {seed}", [*found, normed, theory.iterate(tokens, attention, h, depth=20, norm="pre")]


def monitored(folder: Path) -> Part:
    """A training with a monitor: what it wrote, and what is read back."""
    scrub = Scrub(folder)
    for probe, name in ((None, "live"), ("first", "fixed")):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
        rules = ("mean_cosine@last > -1.0 for 2 steps",)
        with Monitor(model, every=2, probe=probe, sites=("all",), rules=rules, out=folder / name, name=name) as monitor:
            for _ in range(6):
                model(torch.randn(8, 5, 16)).square().mean().backward()
                optimiser.step()
                optimiser.zero_grad()
                monitor.step()
        yield f"{name}: weights", model.state_dict()
        yield f"{name}: files", scrub.files(folder / name)
        read = read_watched(folder / name)
        yield f"{name}: read", [read.state, read.curves, [one.rows for one in read.readings], read.events]
        yield f"{name}: watched", _said(scrub, "watch", str(folder / name), "--once")


def command(folder: Path) -> Part:
    """What the command lists, draws and says."""
    scrub = Scrub(folder)
    for what in LISTED:
        yield f"ls {what}", _said(scrub, "ls", what, "--json")
        yield f"ls {what} as a table", _said(scrub, "ls", what)
    for word in ("", "train", "arena", "evidence", "report", "watch", "doctor", "data", "compare", "presets", "redraw"):
        yield f"help of {word}", _said(scrub, *word.split(), "--help")
    for name in RECIPES:
        yield f"settings of {name}", _said(scrub, "train", name, "--show")
    yield "doctor", _said(scrub, "doctor", "--json")
    yield "data", _said(scrub, "data", "ls")
    few = ["--max-batches", "1", "--batch-size", "8"]
    scans = [str(folder / name) for name in ("plain", "smooth")]
    for path, model in zip(scans, ("demo:plain", "demo:smooth"), strict=True):
        yield f"scan {model}", [_said(scrub, "scan", model, *few, "--out", path), scrub.files(Path(path))]
    yield "scan with explanations", _said(scrub, "scan", "demo:plain", *few, "--explain", "--out", f"{folder}/why")
    yield "its page", scrub.files(folder / "why")
    yield "compare", _said(scrub, "compare", *scans, "--out", f"{folder}/compared")
    yield "compared", scrub.files(folder / "compared")
    yield "presets", _said(scrub, "presets", "demo:plain", *few, "--out", f"{folder}/presets")
    yield "their page", scrub.files(folder / "presets")
    for kind in ("fourier", "variance", "cosine", "rank_residual", "self_similarity"):
        yield f"redraw {kind}", _said(scrub, "redraw", kind, *few, "--out", f"{folder}/{kind}")
        yield f"redrawn {kind}", scrub.files(folder / kind)
    for bad in (
        "scan",
        "train nothing",
        "report /nowhere",
        "watch /nowhere",
        "evidence show nothing",
        "compare /no /not",
    ):
        yield f"refused: {bad}", _said(scrub, *bad.split())


def _said(scrub: Scrub, *words: str) -> Any:
    """Exit code and everything that was printed; JSON is read, for what is in it to be scrubbed by name."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main([*words])
        except SystemExit as ended:
            code = ended.code
    return [code, _read(scrub, out.getvalue()), scrub.text(err.getvalue())]


def _read(scrub: Scrub, text: str) -> Any:
    try:
        return scrub.content(json.loads(text))
    except ValueError:
        return scrub.text(text)


ROOMS: Sequence[Any] = (trainings, arena, evidence, laboratory, monitored, command)
