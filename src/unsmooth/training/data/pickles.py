"""CIFAR's archive of Python pickles, read without running what a pickle can run.

Unpickling calls whatever the file names. These files need numpy's arrays and nothing else: nothing else is looked up.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy

from unsmooth.errors import expected

_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        if name == "_reconstruct":
            # Its old place warns in newer versions of numpy.
            module = "numpy._core.multiarray"
        return super().find_class(module, name)


def read_pickled_images(path: Path) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Images (count, 3, 32, 32) uint8 and labels of one file of CIFAR's Python archive."""
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
        labels = content[b"fine_labels"] if b"fine_labels" in content else content[b"labels"]
        images = numpy.asarray(content[b"data"], dtype=numpy.uint8).reshape(-1, 3, 32, 32)
        return images, numpy.asarray(labels, dtype=numpy.int64)
    except Exception as error:  # a broken pickle may raise anything
        said = " ".join(str(error).split()) or type(error).__name__
        hint = "the binary version of the data set"
        raise expected(f"a pickle of CIFAR images in {path}", said, hint) from None
