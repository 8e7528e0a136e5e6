"""The number by which runs are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from unsmooth.evidence.study import Trained


def score_of(run: Trained, name: str) -> float | None:
    """A metric of the last evaluation; of a run that lost its numbers, what guessing comes to.

    None where nothing can be said: such a run counts in no mean, and is told as a failure.
    """
    if run.made.get("state") == "stopped":
        return guessing(run.config, name)
    found = run.evaluations[-1].get(name) if run.evaluations else None
    return float(found) if found is not None and math.isfinite(found) else None


def guessing(config: Mapping[str, Any], name: str) -> float | None:
    """What a model that knows nothing scores: all classes, or all words, equally likely.

    >>> guessing({"network": {"classes": 4}}, "accuracy"), guessing({"network": {"vocabulary": 1}}, "loss")
    (0.25, 0.0)
    """
    network = config["network"]
    count = network.get("classes", network.get("vocabulary"))
    if not count:
        return None
    return {"accuracy": 1 / count, "loss": math.log(count), "perplexity": float(count)}.get(name)
