"""Embeddings in as torch or numpy, worked on in float64, and out as they came."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

import numpy
import torch
from torch import Tensor

from unsmooth.errors import expected

if TYPE_CHECKING:
    import pandas

# Squares of these are numbers of float64, and so are sums of many.
_LEAST, _MOST = 1e-130, 1e130
Array = TypeVar("Array", Tensor, "numpy.ndarray[Any, Any]")


def matrix_of(x: Any, dimensions: int | None = None) -> Tensor:
    """Embeddings (samples, dimensions) in float64, on the device they are on.

    Args:
        x: A tensor, an array, or what numpy makes one of.
        dimensions: How many each must have, where that is known.
    """
    values = x if isinstance(x, Tensor) else _tensor_of(x)
    if values.layout != torch.strided:
        raise expected("dense embeddings", values.layout, "x.to_dense()")
    if values.is_complex():
        raise expected("real embeddings", values.dtype, "torch.view_as_real(x).flatten(1)")
    if values.ndim != 2 or 0 in values.shape:
        hint = "x[mask.bool()] for the tokens of (batch, tokens, dim), x[None] for one sample"
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
    except (ValueError, TypeError, RuntimeError):  # words, rows of different lengths, sparse matrices, lists of tensors
        hint = "a numpy array of floats; x.toarray() of a sparse matrix, torch.stack(x) of tensors"
        raise expected("embeddings as an array of numbers", type(x).__name__, hint) from None


def check_squares(x_ND: Tensor) -> None:
    """Refuse to learn from numbers whose squares are too large or too small to be told from one another."""
    largest = float(x_ND.abs().max())
    if largest and not _LEAST <= largest <= _MOST:
        hint = "the same divided by one number"
        raise expected(f"embeddings whose largest number is from {_LEAST:g} to {_MOST:g}", f"{largest:.3g}", hint)


def is_frame(x: Any) -> bool:
    """Whether it is a pandas frame; nobody has one who has not imported pandas."""
    pandas: Any = sys.modules.get("pandas")
    return pandas is not None and isinstance(x, pandas.DataFrame)


def names_of(x: Any) -> numpy.ndarray[Any, Any] | None:
    """Of the columns of a frame, where all are words, as scikit-learn has it."""
    if not is_frame(x) or not all(isinstance(name, str) for name in x.columns):
        return None
    return numpy.array(x.columns, dtype=object)


def like(made: Tensor, x: Array, at_least: torch.dtype | None = None) -> Array:
    """`made` as the kind, dtype and device of `x`, or of more digits; whole numbers become float64."""
    if isinstance(x, Tensor):
        wanted = x.dtype if at_least is None else torch.promote_types(x.dtype, at_least)
        return made.to(wanted) if x.is_floating_point() else made
    kind = _kind_of_frame(x) if is_frame(x) else getattr(x, "dtype", None)
    array = made.detach().cpu().numpy()
    if not isinstance(kind, numpy.dtype) or kind.kind != "f":
        return array
    return array.astype(kind if at_least is None else numpy.promote_types(kind, str(at_least).removeprefix("torch.")))


def _kind_of_frame(x: Any) -> numpy.dtype[Any] | None:
    """What numpy makes of its columns; None where pandas has kinds of its own."""
    kinds = list(x.dtypes)
    return numpy.result_type(*kinds) if all(isinstance(kind, numpy.dtype) for kind in kinds) else None


def frame_of(made: Any, names: Any, x: Any) -> pandas.DataFrame:
    """`made` as a frame with these names, and the rows named as those of `x` where that is one."""
    import pandas

    values = made.detach().cpu().double().numpy() if isinstance(made, Tensor) else made
    return pandas.DataFrame(values, columns=names, index=x.index if is_frame(x) else None)
