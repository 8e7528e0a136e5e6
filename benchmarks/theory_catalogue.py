"""Run every case of the theory's catalogue and write docs/theory.md from what was found.

Run it as ``python -m benchmarks.theory_catalogue``. The numbers go to benchmarks/results/theory_catalogue.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from tests.theory.case import CaseResult, Comparison
from tests.theory.cases import CASES

from unsmooth.errors import UnsmoothError
from unsmooth.files import write_whole
from unsmooth.theory import LIMITS

COMMAND = "python -m benchmarks.theory_catalogue"
# The order of reading; a group that is not named comes last.
ORDER = (
    "Eigenvalues of a layer",
    "Limits",
    "Ties",
    "Several heads",
    "Attention that varies",
    "Causal attention",
    "Norms",
)
# Below this a difference is rounding, and differs from machine to machine.
ROUNDING = 1e-9

INTRODUCTION = f"""# The theory as a laboratory

`unsmooth.theory` holds the layer that the papers reason about, without MLP and as small as one likes, so that every
statement can be run:

    X ← X + Σ_h A_h X H_h        H_h = W_V W_O of head h, tokens as rows, every row of A_h sums to one

P1 is Dovonon, Bronstein & Kusner, arXiv 2401.04301; P2 is Yu & Zhang, arXiv 2312.06182. Their statements are given in
our own words; “extends” marks what is derived here from their setting. All numbers on this page were computed in
float64 by `{COMMAND}`; none is quoted from a paper.

## Run a layer many times

```python
import torch
from unsmooth.theory import iterate, outcome, predict, random_attention

attention = random_attention(8, seed=0)  # (n, n), or (heads, n, n)
h = -0.5 * torch.eye(4)  # (d, d), or (heads, d, d)
run = iterate(torch.randn(8, 4), attention, h, depth=200)
run.token_similarity  # t_sim after each layer; also cosines, HFC/LFC, σ₂/σ₁, log ‖X‖
outcome(run).limit  # what was reached
predict(attention, h).limit  # what the eigenvalues say
```

Attention and weights may change from layer to layer (a sequence, or a function of the layer's index), and a LayerNorm
or RMSNorm may stand before the branch or behind the addition (`norm="pre"` or `"post"`, `norm_weight`). `modes` gives
the eigenvalues for several heads, split into the token mean and the rest.

## What many layers can lead to
"""

PREDICTION = """
As notions each of the first four implies the next, and the limit is the strongest that holds.

For tokens in general position and a fixed A and H the eigenvalues 1 + μλ of largest modulus decide, with μ of A and λ
of H: their modes are vwᵀ, with v a right eigenvector of A and w a left one of H. Only μ = 1 among them: input
convergence. One real v: a line, with the signs of v. Complex pairs on one side: a line that turns with depth. Complex
pairs on both: rank two. Ties over several μ and several λ: what lies in them stays.

What this does not say: a trained model's layers have attention that depends on the tokens, an MLP and biases, and few
layers. Eigenvalues speak of the long run, and of the fastest mode however little of it is there.

## The catalogue
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cases, write both files; 1 where a case does not hold."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--page", type=Path, default=Path("docs/theory.md"), help="where the page is written")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/theory_catalogue.json"))
    options = parser.parse_args(arguments)
    results = {name: case.run() for name, case in CASES.items()}
    try:
        write_whole(options.out, json.dumps(record(results), indent=1, ensure_ascii=False) + "\n")
        write_whole(options.page, page(results))
    except UnsmoothError as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return 2
    failing = [name for name, result in results.items() if not result.holds]
    print(f"{len(results) - len(failing)} of {len(results)} cases hold; written to {options.page} and {options.out}")
    for name in failing:
        print(f"  {name}: predicted {results[name].predicted}, reached {results[name].reached}")
    return 1 if failing else 0


def record(results: Mapping[str, CaseResult]) -> dict[str, object]:
    """Everything that was found, for machines."""
    versions = {"torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()}
    return {
        "what": (__doc__ or "").split("\n")[0],
        "versions": versions,
        "holding": sum(result.holds for result in results.values()),
        "cases": [_entry(result) for result in results.values()],
    }


def _entry(result: CaseResult) -> dict[str, object]:
    case = CASES[result.name]
    comparisons = [
        {
            "what": one.what,
            "value": one.value,
            "relation": one.relation,
            "reference": one.reference,
            "tolerance": one.tolerance if one.relation == "≈" else None,
            "holds": one.holds,
        }
        for one in result.comparisons
    ]
    return {
        "name": case.name,
        "group": case.group,
        "description": case.description,
        "paper": case.paper,
        "predicted": result.predicted,
        "reached": result.reached,
        "by_eigenvalues": result.by_eigenvalues,
        "holds": result.holds,
        "numbers": comparisons,
    }


def page(results: Mapping[str, CaseResult]) -> str:
    """The page for people."""
    holding = sum(result.holds for result in results.values())
    limits = _table(("limit", "meaning"), [(name, meaning) for name, meaning in LIMITS.items() if name != "vanishing"])
    groups: dict[str, list[CaseResult]] = {}
    for result in results.values():
        groups.setdefault(CASES[result.name].group, []).append(result)
    ordered = sorted(groups, key=lambda group: ORDER.index(group) if group in ORDER else len(ORDER))
    head = ("case", "claim", "predicted", "reached", "numbers", "whose")
    sections = [f"### {group}\n\n{_table(head, [_row(result) for result in groups[group]])}" for group in ordered]
    said = (
        f"{holding} of {len(results)} cases hold: the limit is reached, `predict` says the same where it applies, and "
        "every number is where it should be. All of them again: `make theory`."
    )
    return "\n".join([INTRODUCTION, limits, PREDICTION, said, "", "\n\n".join(sections), ""])


def _row(result: CaseResult) -> tuple[str, ...]:
    case = CASES[result.name]
    numbers = "<br>".join(_words(one) for one in result.comparisons)
    reached = "the same" if result.reached == result.predicted else result.reached
    return f"`{case.name}`", case.description, result.predicted, reached, numbers, case.paper


def _words(one: Comparison) -> str:
    """A number beside its reference, rounding errors not spelled out.

    >>> _words(Comparison("miss", 3e-16, "<", 1e-9)), _words(Comparison("growth", 1.90000001, "≈", 1.9))
    ('miss: rounding only', 'growth: 1.9, expected 1.9')
    """
    if abs(one.value) < ROUNDING and one.relation == "<":
        return f"{one.what}: rounding only"
    value = "0" if abs(one.value) < ROUNDING else f"{one.value:.4g}"
    relation = {"≈": "expected", "<": "below", ">": "above"}[one.relation]
    return f"{one.what}: {value}, {relation} {one.reference:.4g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
