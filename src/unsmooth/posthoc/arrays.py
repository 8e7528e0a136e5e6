"""Embeddings in as torch or numpy, worked on in float64, and out as they came."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy
import torch
from torch import Tensor

from unsmooth.errors import expected

Array = TypeVar("Array", Tensor, "numpy.ndarray[Any, Any]")


def matrix_of(x: Any, dimensions: int | None = None) -> Tensor:
    """Embeddings (samples, dimensions) in float64, on the device they are on.

    Args:
        x: A tensor, an array, or what numpy makes one of.
        dimensions: How many each must have, where that is known.
    """
    values = x if isinstance(x, Tensor) else torch.from_numpy(numpy.array(x, dtype=numpy.float64))
    if values.ndim != 2 or 0 in values.shape:
        hint = "x[mask] for the tokens of (batch, tokens, dim), x[None] for one sample"
        raise expected("embeddings of shape (samples, dimensions)", tuple(values.shape), hint)
    if dimensions is not None and values.shape[1] != dimensions:
        raise expected(f"embeddings of {dimensions} dimensions, as in fit", values.shape[1], "those of the same model")
    values = values.double()
    if not bool(values.isfinite().all()):
        raise expected("finite embeddings", "NaN or Inf", "leaving these samples out")
    return values


def like(made: Tensor, x: Array) -> Array:
    """`made` as the kind, dtype and device of `x`; whole numbers become float64."""
    if isinstance(x, Tensor):
        return made.to(x.dtype) if x.is_floating_point() else made
    kind = getattr(x, "dtype", None)
    array = made.detach().cpu().numpy()
    return array.astype(kind) if isinstance(kind, numpy.dtype) and kind.kind == "f" else array
