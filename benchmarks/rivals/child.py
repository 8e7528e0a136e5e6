"""One tool in a process of its own, in its own environment: reads a request, prints one line of json.

python -m benchmarks.rivals.child '{"tool": …, "job": "cost" or "answers", …}'
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.rivals.cases import read
from benchmarks.rivals.harness import Step, cost


def main() -> None:
    """Do what is asked; what a tool itself prints goes to standard error."""
    request = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    tool = importlib.import_module(f"benchmarks.rivals.tools.{request['tool']}")
    with contextlib.redirect_stdout(sys.stderr):
        found = {"cost": _cost, "answers": _answers}[request["job"]](tool, request)
    found["versions"] = {package: importlib.metadata.version(package) for package in tool.PACKAGES}
    print(json.dumps(found))


def _cost(tool: Any, request: dict[str, Any]) -> dict[str, Any]:
    ids = torch.load(request["ids"], weights_only=True)[: request["texts"]]
    steps: list[Step] = [
        {"input_ids": part, "attention_mask": torch.ones_like(part)} for part in ids.split(request["batch"])
    ]
    model = tool.load(Path(request["model"]))
    spent, found = cost(tool.WAYS[request["way"]], model, steps, request["rounds"])
    return spent | {"found": found}


def _answers(tool: Any, request: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case in read(Path(request["cases"])):
        try:
            found[case.name] = dict(tool.answers(case))
        except Exception as error:
            # What a tool refuses is an answer too.
            found[case.name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return {"answers": found}


if __name__ == "__main__":
    main()
