"""Python pickles, read without running what a pickle can run, and CIFAR's archive of them.

Unpickling calls whatever the file names: here, nothing but what is listed is looked up.
"""

from __future__ import annotations

import codecs
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy

from unsmooth.errors import expected
from unsmooth.files import open_file

_REBUILD: Any = numpy.empty(0).__reduce__()[0]
_ARRAYS = {
    ("numpy.core.multiarray", "_reconstruct"): _REBUILD,  # its place in older versions
    ("numpy._core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy", "ndarray"): numpy.ndarray,
    ("numpy", "dtype"): numpy.dtype,
    ("_codecs", "encode"): codecs.encode,
}


# In Python: that of C makes a table as long as the largest number that the file names.
class Unpickler(pickle._Unpickler):
    """Reads a pickle that asks for nothing but what is listed, by module and name."""

    def __init__(self, file: IO[bytes], known: Mapping[tuple[str, str], Any], **options: Any) -> None:
        super().__init__(file, **options)
        self._known = known

    def find_class(self, module: str, name: str) -> Any:
        """One of those listed."""
        if (module, name) not in self._known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return self._known[module, name]


def read_pickled_images(path: Path) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Images (count, 3, 32, 32) uint8 and labels of one file of CIFAR's Python archive."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            content = Unpickler(file, _ARRAYS, encoding="bytes").load()
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
