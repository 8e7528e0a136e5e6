"""Ask unsmooth and its rivals the same questions, and measure what asking costs over the plain forward pass.

    make rivals-env                    # once: the rivals' environments, below .rivals
    python -m benchmarks.rivals        # everything; goes on where an earlier run stopped
    python -m benchmarks.rivals --texts 8 --results /tmp/small --out /tmp/small     # to see that it runs

Each measurement is a process of its own on one thread, in the rival's own environment.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.rivals.cases import all_cases, save, truth
from benchmarks.rivals.cells import MODELS, TEXTS, TOKENS, TOOL_OF, TOOLS, Cell, Store, plan
from benchmarks.rivals.page import page
from benchmarks.rivals.texts import token_ids
from benchmarks.rivals.tools import embedding_condensation, stable_pretraining, torchmetrics_pairwise, unsmooth_scan
from benchmarks.rivals.tools import weightwatcher as weightwatcher_tool
from benchmarks.trained_models.models import MODELS as RECIPES
from benchmarks.trained_models.weights import fetch
from unsmooth.errors import UnsmoothError, expected
from unsmooth.files import write_whole

COMMAND = "python -m benchmarks.rivals"
ENVIRONMENTS = {
    tool.__name__.rpartition(".")[2]: tool.ENVIRONMENT
    for tool in (unsmooth_scan, embedding_condensation, torchmetrics_pairwise, stable_pretraining, weightwatcher_tool)
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, write the page."""
    options = _parser().parse_args(arguments)
    correctness = Store(options.results / "rivals_correctness.json", "what each tool answers, beside the float64 truth")
    cost = Store(options.results / "rivals_cost.json", "what each tool adds to the plain forward pass")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            if options.part in ("all", "correctness"):
                ask_all(correctness, options, Path(scratch))
            if options.part in ("all", "cost"):
                measure_all(cost, options, Path(scratch))
    except UnsmoothError as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return 2
    write_whole(options.out / "README.md", page(correctness.content, cost.content))
    print(f"page: {options.out / 'README.md'}")
    return 0


def ask_all(store: Store, options: argparse.Namespace, scratch: Path) -> None:
    """Put every case to every tool that has not answered yet."""
    missing = [tool for tool in TOOLS if options.again or tool not in store]
    if not missing:
        return
    cases = all_cases(_real_layer(_folder(MODELS[0], options)))
    path = scratch / "cases.pt"
    save(cases, path)
    store.content["cases"] = {case.name: case.about for case in cases}
    store.content["truth"] = {case.name: truth(case) for case in cases}
    for tool in missing:
        print(f"{tool} …", file=sys.stderr, flush=True)
        store.put(tool, _in_its_own_process(tool, {"job": "answers", "cases": str(path)}, options.environments))


def _real_layer(folder: Path) -> Any:
    """What the last block of a trained model hands on, by a hook of its own."""
    model = unsmooth_scan.load(folder)
    seen: list[torch.Tensor] = []
    handle = model.encoder.layer[-1].register_forward_hook(
        lambda module, args, output: seen.append(output if isinstance(output, torch.Tensor) else output[0])
    )
    with torch.no_grad():
        model(input_ids=token_ids(folder, 128, 32))
    handle.remove()
    return seen[0].numpy()


def measure_all(store: Store, options: argparse.Namespace, scratch: Path) -> None:
    """Measure every cell that is not in the store yet."""
    store.content["machine"] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": 1,
        "python": platform.python_version(),
    }
    for cell in plan(options.models, options.tokens, options.texts):
        if cell.key in store and not options.again:
            continue
        start = time.perf_counter()
        request = {
            "job": "cost",
            "way": cell.way,
            "model": str(_folder(cell.model, options)),
            "ids": str(_ids(cell, options, scratch)),
            "texts": cell.texts,
            "batch": cell.batch,
            "rounds": cell.rounds,
        }
        load = os.getloadavg()[0]
        found = _in_its_own_process(TOOL_OF[cell.way], request, options.environments)
        # A busy machine is part of what was measured.
        store.put(cell.key, vars(cell) | found | {"load_before": load})
        spent, memory = found["seconds"]["cpu"], found["memory"]["added_mib"]
        print(
            f"{cell.key}: {spent['added']:+.2f} s of {spent['plain']:.2f} s, {memory:+.0f} MiB "
            f"({time.perf_counter() - start:.0f} s)",
            file=sys.stderr,
            flush=True,
        )


def _folder(name: str, options: argparse.Namespace) -> Path:
    return fetch(next(recipe for recipe in RECIPES if recipe.name == name), options.weights)


def _ids(cell: Cell, options: argparse.Namespace, scratch: Path) -> Path:
    path = scratch / f"{cell.model}-{cell.tokens}.pt"
    if not path.exists():
        torch.save(token_ids(_folder(cell.model, options), cell.tokens, max(options.texts)), path)
    return path


def _in_its_own_process(tool: str, request: dict[str, Any], environments: Path) -> dict[str, Any]:
    name = ENVIRONMENTS[tool]
    python = environments / name / "bin" / "python" if name else Path(sys.executable)
    if not python.exists():
        raise expected(f"the environment of {tool} in {environments}", "none", "`make rivals-env` first")
    # bfloat16 products need instructions that some processors announce and do not allow.
    variables = {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(python), "-m", "benchmarks.rivals.child", json.dumps({"tool": tool} | request)],
        capture_output=True,
        text=True,
        env={**os.environ, **variables, "TOKENIZERS_PARALLELISM": "false"},
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise expected(f"{tool} to run", reason, f"{python} -m benchmarks.rivals.child by hand")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=("all", "correctness", "cost", "page"), default="all")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    parser.add_argument("--texts", nargs="+", type=int, default=TEXTS)
    parser.add_argument("--again", action="store_true", help="measure anew what is there already")
    parser.add_argument("--weights", type=Path, default=Path("weights"), help="where the weights are kept")
    parser.add_argument("--environments", type=Path, default=Path(".rivals"), help="what `make rivals-env` made")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--out", type=Path, default=Path("docs/rivals"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
