"""CIFAR's archive of Python pickles, read without running what a pickle can run.

Unpickling calls whatever the file names. These files need numpy's arrays and nothing else: nothing else is looked up.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy

from unsmooth.errors import expected
from unsmooth.files import open_file

_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


# In Python: that of C makes a table as long as the largest number that the file names.
class _ArraysOnly(pickle._Unpickler):
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
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            content = _ArraysOnly(file, encoding="bytes").load()
        labels = content[b"fine_labels"] if b"fine_labels" in content else content[b"labels"]
        images = content[b"data"]
        if (
            not isinstance(images, numpy.ndarray)
            or images.dtype != numpy.uint8
            or max(images.nbytes, len(labels)) > size
        ):
            raise ValueError("other things than the bytes of images")
        return images.reshape(-1, 3, 32, 32), numpy.asarray(labels, dtype=numpy.int64)
    except Exception as error:  # a broken pickle may raise anything
        said = " ".join(str(error).split()) or type(error).__name__
        hint = "the binary version of the data set"
        raise expected(f"a pickle of CIFAR images in {path}", said, hint) from None
