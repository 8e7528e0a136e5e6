"""The table of |μ₂| by chance: quantiles of random Markov matrices by size and entropy.

    python -m benchmarks.random_markov [--quick] [--out src/unsmooth/spectra/random_markov.json]

Each number is a quantile over simulated matrices, divided by what is known in closed form for this size and entropy:
the radius of the circular law, or for causal matrices the same quantile of the causal Dirichlet null.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy
import torch
from scipy.sparse.linalg import ArpackNoConvergence, eigs
from torch import Tensor

from unsmooth.files import write_whole
from unsmooth.spectra.random_markov import (
    ENTROPIES,
    SIZES,
    _causal_quantile,
    _radius,
    random_logits,
    random_markov,
    scale_of_logits,
)

QUANTILES = (0.5, 0.95)
# From here on only the largest eigenvalues are looked for, and one scale of logits does for all draws.
LARGE = 100


def second(map_NN: Tensor) -> float:
    """Largest modulus besides the eigenvalue 1 of equal tokens: that of (I − Π)A."""
    rest = (map_NN - map_NN.mean(dim=0, keepdim=True)).numpy()
    if len(rest) < LARGE:
        return float(numpy.abs(numpy.linalg.eigvals(rest)).max())
    start = numpy.random.default_rng(0).normal(size=len(rest))
    try:
        largest = eigs(rest, k=4, ncv=60, tol=1e-4, v0=start, maxiter=200, return_eigenvectors=False)
    except ArpackNoConvergence:  # many eigenvalues of nearly the same modulus, where rows look at one token each
        largest = numpy.linalg.eigvals(rest)
    return float(numpy.abs(largest).max())


def quantiles(n: int, entropy: float, draws: int) -> dict[str, float]:
    """Of all kinds at one size and entropy, over what is known."""
    generator = torch.Generator().manual_seed(1000 * n + round(1000 * entropy))
    values = {
        "dirichlet": [second(random_markov(n, entropy, generator)) for _ in range(draws)],
        "softmax": [second(map_NN) for map_NN in softmaxes(n, entropy, draws, generator, causal=False)],
        "causal softmax": [
            float(map_NN.diagonal()[1:].max()) for map_NN in softmaxes(n, entropy, draws, generator, causal=True)
        ],
    }
    found = {}
    for quantile in QUANTILES:
        for kind, seconds in values.items():
            known = _causal_quantile(n, entropy, quantile) if kind.startswith("causal") else _radius(n, entropy)
            found[f"{kind} {quantile}"] = float(numpy.quantile(seconds, quantile)) / known
    return found


def softmaxes(n: int, entropy: float, draws: int, generator: torch.Generator, causal: bool) -> Iterator[Tensor]:
    """Draws as of `random_softmax`."""
    scale = scale_of_logits(random_logits(n, generator, causal), entropy)
    for _ in range(draws):
        logits_NN = random_logits(n, generator, causal)
        scale = scale if n >= LARGE else scale_of_logits(logits_NN, entropy)
        yield (logits_NN * scale).softmax(dim=-1)


def main() -> None:
    """Simulate, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few draws, to try the script")
    parser.add_argument("--out", default="src/unsmooth/spectra/random_markov.json")
    given = parser.parse_args()
    tables: dict[str, list[list[float]]] = {}
    for n in SIZES:
        draws = 5 if given.quick else max(16, min(300, 2**14 // n))
        rows = [quantiles(n, entropy, draws) for entropy in ENTROPIES]
        for kind in rows[0]:
            tables.setdefault(kind, []).append([float(f"{row[kind]:.4g}") for row in rows])
        print(n, {kind: table[-1][6] for kind, table in tables.items()}, flush=True)
    write_whole(Path(given.out), (json.dumps(tables, indent=None).replace("]], ", "]],\n") + "\n"))


if __name__ == "__main__":
    main()
