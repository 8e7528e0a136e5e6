"""The number by which runs are compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from unsmooth.evidence.study import Trained

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
