"""From what users have (texts, images, arrays, tables, data sets, loaders, files) to batches for a model.

Whatever comes in is one of three things: rows, which are cut into batches; arrays, which are sliced; or batches that
somebody else has made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from unsmooth.errors import UnsmoothError, expected
from unsmooth.files import lines_of, open_file
from unsmooth.scanning.data import (
    Cut,
    Preprocessing,
    RawBatch,
    Source,
    as_tensor,
    cut_batch,
    first_of_pair,
    read_texts,
    sequences_of,
    tensors,
)
from unsmooth.scanning.rows import Rows, encoding_of, is_ids, is_row, rows_in, rows_of, rows_of_lists

TEXT_SUFFIXES = (".txt", ".md", ".jsonl")
TABLE_SUFFIXES: Mapping[str, str] = {".csv": ",", ".tsv": "\t"}
_MOST_COLUMNS = 10_000
_AT_ONCE = 4096
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def open_data(data: Any, how: Preprocessing) -> Source:
    """Recognise what `data` is and prepare it for reading; each batch is checked before the model sees it."""
    source = _recognised(data, how)

    def read() -> Iterator[RawBatch]:
        for batch in source.read():
            how.check(batch)
            yield batch

    return replace(source, read=read)


def _recognised(data: Any, how: Preprocessing) -> Source:
    if isinstance(data, Path) or (isinstance(data, str) and _names_a_path(data)):
        return _open_path(Path(data), how)
    if isinstance(data, str):
        data = [data]
    if isinstance(data, DataLoader):
        return _open_loader(data, how)
    if (rows := rows_in(data)) is not None:
        return _open_rows(rows, how, {})
    if isinstance(data, Mapping):
        return _open_dict(data, how)
    if (numbers := as_tensor(data)) is not None:
        whole = numbers[None] if is_ids(numbers) else numbers
        return _sliced("tensor", len(whole) if whole.ndim else 0, lambda start, stop: whole[start:stop], how)
    if isinstance(data, Iterable):
        return _open_stream(data, how, len(data) if isinstance(data, Sequence) else None, {})
    raise expected(
        "texts, images, arrays, a table, a data set, a DataLoader, a folder or a text file",
        type(data).__name__,
        'scan(model, ["a text", "another"])',
    )


def _names_a_path(text: str) -> bool:
    if not text or "\n" in text or len(text) > 1024:  # no name is that of the folder one is in
        return False
    # A text has spaces; a mistyped path must not be scanned as a one-word text.
    return Path(text).exists() or not any(character.isspace() for character in text)


def _open_path(path: Path, how: Preprocessing) -> Source:
    if not path.exists():
        raise expected("an existing text file or folder", repr(str(path)), "the path of a .txt file or of a folder")
    if not path.is_dir():
        if path.suffix.lower() in IMAGE_SUFFIXES:
            return _open_rows(Rows.of([path]), how, {"path": path.name})
        if path.suffix.lower() in TABLE_SUFFIXES:
            return _open_rows(_read_table(path), how, {"path": path.name})
        return _open_texts([path], path.name, how)
    files = sorted(item for item in path.rglob("*") if item.is_file() and not item.name.startswith("."))
    images = [item for item in files if item.suffix.lower() in IMAGE_SUFFIXES]
    texts = [item for item in files if item.suffix.lower() in TEXT_SUFFIXES]
    if images and (how.image_processor is not None or not texts):
        return _open_rows(Rows.of(images), how, {"path": path.name, "files": len(images)})
    if texts:
        return _open_texts(texts, path.name, how)
    raise expected(
        f"text ({' '.join(TEXT_SUFFIXES)}) or image files in {path.name}/",
        f"{len(files)} files of other kinds" if files else "an empty folder",
        "a folder that holds some",
    )


def _read_table(path: Path) -> Rows:
    import pandas

    separator = TABLE_SUFFIXES[path.suffix.lower()]
    try:
        with open_file(path) as file:
            for line in lines_of(file, path):  # none is too long
                if (columns := line.count(separator.encode())) > _MOST_COLUMNS:
                    problem = f"one of {columns + 1:,}"
                    raise expected(
                        f"a table of at most {_MOST_COLUMNS:,} columns at {path.name}", problem, "its text alone"
                    )
            file.seek(0)
            return Rows.of_table(pandas.read_csv(file, sep=separator))
    except UnsmoothError:
        raise
    except (OSError, ValueError) as error:
        problem = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise expected(f"a readable table at {path.name}", problem, "another file") from None


def _open_texts(files: Sequence[Path], name: str, how: Preprocessing) -> Source:
    found = [text for file in files for text in read_texts(file, how.column)]
    if not found:
        raise expected(f"at least one text in {name}", "none", "a file that is not empty")
    return _open_rows(Rows.of(found), replace(how, column=None), {"path": name})


def _open_rows(rows: Rows, how: Preprocessing, details: Mapping[str, Any]) -> Source:
    if rows.size == 0:
        raise expected("at least one sequence", "empty data", "data with at least one text, image or row")
    encoding = encoding_of(rows.cut(0, 1)[0], how)
    for start in range(0, rows.size, _AT_ONCE) if rows.whole else ():
        encoding.values(rows.cut(start, start + _AT_ONCE), start)  # a row that is amiss is told before any work

    def cut(start: int, stop: int) -> RawBatch:
        batch, went = encoding.batch(rows.cut(start, stop), start)
        if went is not None:
            source.cuts[start // how.batch_size] = went
        return batch

    source = _sliced(encoding.kind, rows.size, cut, how, {**details, **encoding.details, encoding.kind: rows.size})
    return source


def _open_dict(data: Mapping[str, Any], how: Preprocessing) -> Source:
    if splits := [name for name, value in data.items() if hasattr(value, "column_names")]:
        raise expected("one split of a data set", " and ".join(map(repr, splits)), f"data[{splits[0]!r}]")
    if is_row(data):
        return _open_rows(Rows.of([data]), how, {})
    if (rows := rows_of_lists(data)) is not None:
        return _open_rows(Rows.of(rows), how, {})
    fields = tensors(data)
    if not any(isinstance(value, Tensor) and value.ndim for value in fields.values()):
        raise expected(
            "a dict of arrays, or of lists", ", ".join(map(repr, data)) or "an empty one", "a dict of tensors"
        )
    size = sequences_of(fields)
    if size is None:
        return Source("dict", lambda: iter([fields]), 1, {"whole": True})
    return _sliced("dict", size, lambda start, stop: cut_batch(fields, size, start, stop), how)


def _open_loader(loader: DataLoader[Any], how: Preprocessing) -> Source:
    iterable = isinstance(loader.dataset, IterableDataset)
    source = _open_stream(loader, how, None if iterable else len(loader), {"batch_size": loader.batch_size})
    return replace(source, sharded=iterable or isinstance(loader.sampler, DistributedSampler))


def _open_stream(data: Iterable[Any], how: Preprocessing, batches: int | None, details: dict[str, Any]) -> Source:
    cuts: dict[int, Cut] = {}

    def read() -> Iterator[RawBatch]:
        for number, (batch, went) in enumerate(_encoded(data, how)):
            if went is not None:
                cuts[number], details["max_length"] = went, how.length
            yield batch

    return Source("loader", read, batches, details, replayable=not isinstance(data, Iterator), cuts=cuts)


def _encoded(items: Iterable[Any], how: Preprocessing) -> Iterator[tuple[RawBatch, Cut | None]]:
    """What a stream holds, where it is rows as many of them together as a batch has, with what a limit left out."""
    walk = iter(items)
    for first in walk:
        walk = chain([first], walk)
        if is_row(first):
            encoding, start = encoding_of(first, how), 0
            while rows := list(islice(walk, how.batch_size)):
                yield encoding.batch(rows, start)
                start += len(rows)
        else:
            yield from (_as_batch(item, how) for item in walk)
        return


def _as_batch(item: Any, how: Preprocessing) -> tuple[RawBatch, Cut | None]:
    """What a loader yields: a batch of tensors, or of texts and images that are yet to be encoded."""
    rows = item if isinstance(item, list | tuple) else None
    if rows and isinstance(rows[0], list | tuple | Mapping) and not is_row(rows[0]):
        return _as_batch(rows[0], how)  # beside its labels
    if isinstance(item, Mapping):
        rows = rows_of_lists(item)
    elif hasattr(item, "columns"):  # a table, as data sets of such a format yield
        rows = rows_of(item)
    if rows and all(map(is_row, rows)):
        return encoding_of(rows[0], how).batch(rows)
    return _with_numbers(first_of_pair(item)), None


def _with_numbers(batch: RawBatch) -> RawBatch:
    values = [batch] if isinstance(batch, Tensor) else batch.values()
    if any(isinstance(value, Tensor) and value.is_meta for value in values):
        raise expected("tensors with numbers", "one on the meta device, which has none", "reading the data first")
    return batch


def _sliced(
    kind: str,
    size: int,
    cut: Callable[[int, int], RawBatch],
    how: Preprocessing,
    details: Mapping[str, Any] | None = None,
) -> Source:
    if size == 0:
        raise expected("at least one sequence", "empty data", "data with at least one text, image or row")
    step = how.batch_size

    def read() -> Iterator[RawBatch]:
        for start in range(0, size, step):
            yield _with_numbers(cut(start, min(start + step, size)))

    return Source(kind, read, -(-size // step), {**(details or {}), "batch_size": step})
