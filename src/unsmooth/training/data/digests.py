"""Checksums: of files, and of sets of records that may come in any order."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy

from unsmooth.files import open_file

_BLOCK = 1 << 20


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Hexadecimal digest of a file, read in blocks.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as empty:
    ...     file_digest(Path(empty.name), "md5")
    'd41d8cd98f00b204e9800998ecf8427e'
    """
    # md5 is here to recognise official files, not to keep anybody out.
    state = hashlib.new(algorithm, usedforsecurity=False)
    with open_file(path) as file:
        while block := file.read(_BLOCK):
            state.update(block)
    return state.hexdigest()


def records_digest(records: numpy.ndarray) -> str:
    """Digest of a set of records (count, bytes) uint8 that does not depend on their order.

    The SHA-256 of the sorted SHA-256 of each record. Images come sorted by class from folders and shuffled from the
    official archives; this tells whether they are the same images.

    >>> records = numpy.arange(6, dtype=numpy.uint8).reshape(3, 2)
    >>> records_digest(records) == records_digest(records[::-1]), records_digest(records) == records_digest(records[:2])
    (True, False)
    """
    each = sorted(hashlib.sha256(record.tobytes()).digest() for record in records)
    return hashlib.sha256(b"".join(each)).hexdigest()
