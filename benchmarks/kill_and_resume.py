"""Training runs that are killed by SIGKILL, again and again, and taken up: do they come to the same bits?

    python -m benchmarks.kill_and_resume [--seed 0] [--out benchmarks/results/kill_and_resume.json]

Each of four short runs is carried out once in peace, and once with five kills: before its first checkpoint, twice at a
random step, while a checkpoint is being written, and while the final weights are. After every kill it goes on with
`unsmooth train --resume`. Compared are the final weights to the bit, and the log without its timings.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from unsmooth.files import write_whole
from unsmooth.training.checkpoint import Checkpoints

STEPS = 24
COMMON = f"device=cpu deterministic=true epochs=none steps={STEPS} log_every=1 evaluate_every=8 checkpoint_every=2"
SMALL = "depth=2 dim=16 heads=2 hidden=32 measuring.every=12 measuring.at= measuring.sequences=4"
IMAGES = "data.name=synthetic train_limit=200 test_limit=40 batch=8"
TEXT = "test_limit=16 network.length=16"
RUNS = {
    "ViT, sharpen, moving average": [
        "vit_cifar100",
        "--with",
        "sharpen(start=fresh, size=1.0)",
        *f"{IMAGES} ema=0.9".split(),
    ],
    "ViT, orthogonal, learnt tau, accumulated": [
        "vit_cifar100",
        *("--with", "sharpen(basis=orthogonal)", "--with", "deescalate(learn=layer)"),
        *f"{IMAGES} micro_batch=4 ramp=0.5 dropout=0.1".split(),
    ],
    "encoder, masked": ["cram_bert", "--data", "text.txt", *f"{TEXT} batch=8 micro_batch=4 dropout=0.1".split()],
    "decoder with a memory": ["xl_wt103", "--data", "text.txt", *f"{TEXT} batch=8 network.memory=16".split()],
}
KILLS = ("before the first checkpoint", "at a random step", "in a save", "at a random step", "in the final write")
_PATIENCE = 120.0


@dataclass(frozen=True)
class Kill:
    """One kill: what was intended, the last step in the log, and what was on the disk."""

    run: str
    intended: str
    logged_step: int
    newest_checkpoint: int | None
    hit: str
    unreadable: int


def command(words: list[str], out: str) -> list[str]:
    """A fresh run; words with = are settings."""
    settings = [part for word in f"{COMMON} {SMALL}".split() for part in ("--set", word)]
    own = [part for word in words for part in (("--set", word) if "=" in word and "(" not in word else (word,))]
    return ["train", *own, *settings, "--size", "tiny", "--out", out, "--quiet"]


def start(words: list[str], home: Path) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent / "src")}
    return subprocess.Popen([sys.executable, "-m", "unsmooth", *words], cwd=home, env=environment)


def finish(words: list[str], home: Path) -> None:
    """Run to the end, which must be a good one."""
    code = start(words, home).wait()
    assert code == 0, f"exit code {code} of {' '.join(words)}"


def logged(out: Path) -> int:
    """The last step in the log; −1 where there is none."""
    try:
        lines = (out / "log.jsonl").read_text(errors="replace").splitlines()
        return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=-1)
    except (OSError, ValueError):
        return -1


def drafts(folder: Path) -> bool:
    """Whether something is being written there."""
    return any(path.name.endswith(".tmp") for path in folder.glob(".*"))


def moment(intended: str, out: Path, chance: random.Random) -> Callable[[], bool]:
    """Whether it is time."""
    begun = logged(out)
    checkpoints = out / "checkpoints"
    if intended == "in a save":
        return lambda: drafts(checkpoints)
    if intended == "in the final write":
        return lambda: any(path.is_dir() for path in out.glob(".*.tmp"))
    if intended == "at a random step":
        target = max(begun, 0) + chance.randint(1, 6)
        return lambda: logged(out) >= target
    wait = time.monotonic() + chance.uniform(0, 0.2)
    return lambda: (out / "manifest.json").exists() and time.monotonic() > wait


def kill(name: str, intended: str, words: list[str], home: Path, out: Path, chance: random.Random) -> Kill:
    """Start, wait for the moment, kill, and look at what is left."""
    process, now, begun = start(words, home), moment(intended, out, chance), time.monotonic()
    while not now():
        assert process.poll() is None, f"{name}: over before it was killed {intended}, exit code {process.returncode}"
        assert time.monotonic() - begun < _PATIENCE, f"{name}: {intended} never came"
        time.sleep(0.0005)
    if intended == "at a random step":
        time.sleep(chance.uniform(0, 0.03))
    process.kill()
    process.wait()
    checkpoints = Checkpoints(out / "checkpoints")
    newest = checkpoints.latest()
    hit = "between steps or in one"
    if newest is None:
        hit = "before the first checkpoint"
    if drafts(out / "checkpoints"):
        hit = "in a save"
    elif any(path.is_dir() for path in out.glob(".*.tmp")) or (out / "final").exists():
        hit = "in the final write"
    step = None if newest is None else newest.step
    return Kill(name, intended, logged(out), step, hit, len(checkpoints.passed_over))


def same(first: Path, second: Path) -> dict[str, bool]:
    """Weights to the bit, and logs without timings."""
    files = sorted(file.relative_to(first) for file in first.glob("final*/*.safetensors"))
    others = sorted(file.relative_to(second) for file in second.glob("final*/*.safetensors"))
    weights = files == others and all((first / file).read_bytes() == (second / file).read_bytes() for file in files)
    return {"weights": bool(files) and weights, "log": lines(first) == lines(second)}


def lines(folder: Path) -> list[dict[str, Any]]:
    """The log and the spectra without timings."""
    text = (folder / "log.jsonl").read_text() + (folder / "spectra.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    return [{key: value for key, value in line.items() if key != "samples_per_second"} for line in found]


def torment(name: str, home: Path, seed: int) -> tuple[list[Kill], dict[str, bool]]:
    """One run in peace and one with all the kills."""
    chance = random.Random(f"{seed} {name}")
    peace, killed = f"peace {name}", f"killed {name}"
    finish(command(RUNS[name], peace), home)
    again = ["train", "--resume", killed, "--quiet"]
    kills = [
        kill(name, intended, command(RUNS[name], killed) if number == 0 else again, home, home / killed, chance)
        for number, intended in enumerate(KILLS)
    ]
    finish(again, home)
    return kills, same(home / peace, home / killed)


def measure(seed: int) -> dict[str, Any]:
    """All runs, two at a time."""
    begun = time.monotonic()
    with TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        home = Path(folder)
        (home / "text.txt").write_text(
            "".join(f"line {number} of a text, {number**2 % 97}\n" for number in range(3000))
        )
        found = list(pool.map(lambda name: torment(name, home, seed), RUNS))
    kills = [one for made, _ in found for one in made]
    return {
        "kills": len(kills),
        "identical": all(all(result.values()) for _, result in found),
        "unreadable_checkpoints": sum(one.unreadable for one in kills),
        "hits": {hit: sum(one.hit == hit for one in kills) for hit in sorted({one.hit for one in kills})},
        "runs": {name: result for name, (_, result) in zip(RUNS, found, strict=True)},
        "each": [asdict(one) for one in kills],
        "steps": STEPS,
        "seed": seed,
        "seconds": round(time.monotonic() - begun, 1),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }


def main() -> None:
    """Measure, write, and fail where something is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kill_and_resume.json"))
    options = parser.parse_args()
    result = measure(options.seed)
    write_whole(options.out, json.dumps(result, indent=1) + "\n")
    print(f"{result['kills']} kills, identical: {result['identical']}, hits: {result['hits']}, {result['seconds']} s")
    sys.exit(0 if result["identical"] and not result["unreadable_checkpoints"] else 1)


if __name__ == "__main__":
    main()
