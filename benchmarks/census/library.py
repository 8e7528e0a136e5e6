"""How the library is called: what came of it, and its numbers."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from typing import Any

from torch import nn

MEASURES = ("token_similarity", "mean_cosine")


def asked(call: Callable[[], Any]) -> tuple[str, Any]:
    """What came of a call: "done", "refused: …" in the library's words, or "crashed: …"."""
    from unsmooth import UnsmoothError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "done", call()
    except UnsmoothError as error:
        return "refused: " + str(error).replace("\n", " ")[:600], None
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        at = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
        return f"crashed: {type(error).__name__} at {at}: {error}".replace("\n", " ")[:400], None


def scan(model: nn.Module, data: Any, **options: Any) -> Any:
    """A scan as short as it can be."""
    import torch

    import unsmooth

    torch.manual_seed(0)  # as the recorded pass, for models that choose patches by chance
    return unsmooth.scan(
        model, data, metrics=list(MEASURES), tokens="all", progress=False, confounds=False, fingerprint=False, **options
    )


def curves_of(scan: Any, site: str = "residual") -> dict[str, dict[str, list[float]]]:
    """The library's numbers: stack to measure to one number for each layer."""
    frame = scan.to_frame()
    frame = frame[frame["site"] == site]
    if "stack" not in frame:
        frame = frame.assign(stack="")
    found: dict[str, dict[str, list[float]]] = {}
    for (stack, metric), rows in frame.groupby(["stack", "metric"], sort=False):
        ordered = rows.sort_values("layer")
        found.setdefault(str(stack), {})[str(metric)] = [float(one) for one in ordered["mean"]]
    return found
