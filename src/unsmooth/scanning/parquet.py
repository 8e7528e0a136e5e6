"""A scan as a Parquet file: the columns of the frame, and what they mean in the file's own metadata."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from unsmooth.extras import import_extra
from unsmooth.files import finite

if TYPE_CHECKING:
    from unsmooth.scanning.result import Scan

METADATA_KEY = b"unsmooth"
"""Where in a file's metadata the name, sentence, notes, definitions and manifest are, as JSON."""


def parquet_bytes(scan: Scan) -> bytes:
    """The file; NaN becomes null.

    Raises:
        UnsmoothError: There is no pyarrow.
    """
    arrow, parquet = import_pyarrow()
    table = arrow.Table.from_pandas(scan.to_frame(), preserve_index=False)
    meaning = {
        "name": scan.name,
        "sentence": scan.sentence,
        "notes": list(scan.notes),
        "complete": scan.complete,
        "healthy": scan.healthy,
        "definitions": {name: card.definition for name, card in scan.metrics.items()},
        "sites": dict(scan.sites),
        "manifest": dict(scan.manifest),
    }
    added = {METADATA_KEY: json.dumps(finite(meaning), allow_nan=False).encode()}
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **added})
    sink = arrow.BufferOutputStream()
    parquet.write_table(table, sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def import_pyarrow() -> tuple[Any, Any]:
    """The package and its Parquet part, or the error that says how to get them; to be asked for before any work."""
    wanted = {"extra": "parquet", "purpose": "which writes Parquet files"}
    return import_extra("pyarrow", **wanted), import_extra("pyarrow.parquet", **wanted)
