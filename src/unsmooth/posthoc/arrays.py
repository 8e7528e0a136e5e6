"""Embeddings in as torch or numpy, worked on in float64, and out as they came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy
import torch
from torch import Tensor

from unsmooth.errors import expected

if TYPE_CHECKING:
    import pandas

Array = TypeVar("Array", Tensor, "numpy.ndarray[Any, Any]")


def matrix_of(x: Any, dimensions: int | None = None) -> Tensor:
    """Embeddings (samples, dimensions) in float64, on the device they are on.

    Args:
        x: A tensor, an array, or what numpy makes one of.
        dimensions: How many each must have, where that is known.
    """
    values = x if isinstance(x, Tensor) else _tensor_of(x)
    if values.is_complex():
        raise expected("real embeddings", values.dtype, "torch.view_as_real(x).flatten(1)")
    if values.ndim != 2 or 0 in values.shape:
        hint = "x[mask] for the tokens of (batch, tokens, dim), x[None] for one sample"
        raise expected("embeddings of shape (samples, dimensions)", tuple(values.shape), hint)
    if dimensions is not None and values.shape[1] != dimensions:
        raise expected(f"embeddings of {dimensions} dimensions, as in fit", values.shape[1], "those of the same model")
    values = values.double()
    if not bool(values.isfinite().all()):
        raise expected("finite embeddings", "NaN or Inf", "leaving these samples out")
    return values


def _tensor_of(x: Any) -> Tensor:
    """What numpy makes of `x`, copied: an array may be read-only, or somebody else's."""
    try:
        array = numpy.array(x)
        return torch.from_numpy(array if array.dtype.kind == "c" else array.astype(numpy.float64))
    except (ValueError, TypeError):  # words, rows of different lengths, sparse matrices
        hint = "a numpy array of floats; x.toarray() of a sparse matrix"
        raise expected("embeddings as an array of numbers", type(x).__name__, hint) from None


def like(made: Tensor, x: Array) -> Array:
    """`made` as the kind, dtype and device of `x`; whole numbers become float64."""
    if isinstance(x, Tensor):
        return made.to(x.dtype) if x.is_floating_point() else made
    kind = getattr(x, "dtype", None)
    array = made.detach().cpu().numpy()
    return array.astype(kind) if isinstance(kind, numpy.dtype) and kind.kind == "f" else array


def frame_of(made: Any, names: Any, x: Any) -> pandas.DataFrame:
    """`made` as a frame with these names, and the rows named as those of `x` where that is one."""
    import pandas

    values = made.detach().cpu().double().numpy() if isinstance(made, Tensor) else made
    return pandas.DataFrame(values, columns=names, index=x.index if isinstance(x, pandas.DataFrame) else None)
