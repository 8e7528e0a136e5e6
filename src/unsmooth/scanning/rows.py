"""Rows (one text, image, list of ids or table row each), and how they become batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from unsmooth.errors import expected
from unsmooth.files import open_image
from unsmooth.scanning.data import PER_TOKEN, TOKEN_FIELDS, Cut, Preprocessing, RawBatch, as_tensor, is_whole

TEXT_COLUMNS = ("text", "sentence", "content", "document", "passage")
"""Which of several columns of strings is the text: the first of these that is there."""
# Characters that are encoded at once: the tokenizers library takes up to 450 bytes for one, also where it is cut off.
_LONGEST = 1 << 19
Encode: TypeAlias = Callable[[list[Any]], tuple[RawBatch, Cut | None]]


@dataclass(frozen=True)
class Rows:
    """So many rows, of which any run can be had; `whole` where all of them lie in memory."""

    size: int
    cut: Callable[[int, int], list[Any]]
    whole: bool = False

    @classmethod
    def of(cls, rows: Sequence[Any]) -> Rows:
        """Rows in memory."""
        return cls(len(rows), lambda start, stop: list(rows[start:stop]), whole=True)

    @classmethod
    def of_table(cls, table: Any) -> Rows:
        """Those of a DataFrame, made a batch at a time: as dicts they take a hundred times its memory."""
        return cls(len(table), lambda start, stop: rows_of(table.iloc[start:stop]), whole=True)


def rows_in(data: Any) -> Rows | None:
    """The rows of a table, a data set or a list of single sequences; None for what is sliced or batched already."""
    if hasattr(data, "iloc"):  # pandas, which need not be imported to be recognised
        if not hasattr(data, "columns"):
            return Rows.of(data.tolist())
        return Rows.of_table(data)
    if hasattr(data, "column_names") and hasattr(data, "__len__") and not isinstance(data, Mapping):
        return Rows(len(data), lambda start, stop: rows_of(data[start:stop]))  # of the packages datasets and pyarrow
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        return Rows(len(data), lambda start, stop: [data[row] for row in range(start, stop)])
    if isinstance(data, numpy.ndarray | Tensor) and data.ndim == 4 and str(data.dtype).endswith("uint8"):
        return Rows.of(list(data))  # images
    if isinstance(data, numpy.ndarray) and data.dtype.kind in "UOT":
        return rows_in(data.tolist())
    if not isinstance(data, Sequence) or not data:
        return None
    if isinstance(data[0], tuple) and len(data[0]) > 1 and all(isinstance(one, str) for one in data[0]):
        raise expected("texts, or pairs of a text and its label", "pairs of texts", "token ids of both together")
    return Rows.of(data) if is_row(data[0]) else None


def rows_of(columns: Any) -> list[dict[str, Any]]:
    """Rows of a table that is held by columns: a dict of them, or what pandas, pyarrow and polars make of that.

    >>> rows_of({"text": ["a", "b"], "label": [0, 1]})
    [{'text': 'a', 'label': 0}, {'text': 'b', 'label': 1}]
    """
    if hasattr(columns, "iloc"):
        return list(columns.to_dict("records"))
    for name in ("to_pylist", "to_dicts"):
        if hasattr(columns, name):
            return list(getattr(columns, name)())
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def rows_of_lists(data: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The rows of a dict of lists whose tokens are, or have to be made of, its lists; None for a dict of arrays."""
    tokens = [data[field] for field in TOKEN_FIELDS if field in data]
    lists = {name: value for name, value in data.items() if isinstance(value, list | tuple) and value}
    texts = any(is_row(value[0]) and not is_ids(value[0]) for value in lists.values())
    if (tokens and not isinstance(tokens[0], list | tuple)) or not (tokens or texts):
        return None
    if len({len(value) for value in lists.values()}) > 1:
        sizes = ", ".join(f"{name!r}: {len(value)}" for name, value in lists.items())
        raise expected("columns of one length", sizes, "as many rows in each")
    return rows_of(lists)


# Axes of what a batch has beside images that are cut into patches already, which have three then as one image has.
_BESIDE_PATCHES = {"spatial_shapes": 2, "pixel_attention_mask": 2, "pixel_position_ids": 3, "feature_lens": 1}


def is_row(item: Any) -> bool:
    """Whether an item of a list or stream is one sequence rather than a batch of them."""
    if isinstance(item, Mapping):
        token_field = next((field for field in TOKEN_FIELDS if field in item), None)
        if any(_axes(item[field]) == axes for field, axes in _BESIDE_PATCHES.items() if field in item):
            return False
        if token_field is not None:
            return _axes(item[token_field]) == TOKEN_FIELDS[token_field]
        return any(isinstance(value, str) or _is_image(value) for value in item.values())
    if isinstance(item, tuple) and not is_ids(item):
        # A row beside its label; several texts are a batch of them.
        return len(item) > 1 and is_row(item[0]) and not isinstance(item[1], str)
    return isinstance(item, str) or _is_image(item) or is_ids(item)


def _axes(value: Any) -> int:
    if isinstance(value, list | tuple):
        return 1 + (_axes(value[0]) if value else 0)
    return int(getattr(value, "ndim", 0))


def is_ids(item: Any) -> bool:
    """Whether it is one sequence of token ids."""
    if isinstance(item, list | tuple):
        return bool(item) and all(isinstance(one, int | numpy.integer) and not isinstance(one, bool) for one in item)
    if isinstance(item, Tensor):
        return item.ndim == 1 and is_whole(item)
    return isinstance(item, numpy.ndarray) and item.ndim == 1 and item.dtype.kind in "iu"


def _is_image(item: Any) -> bool:
    pixels = isinstance(item, numpy.ndarray | Tensor) and item.ndim == 3 and str(item.dtype).endswith("uint8")
    return pixels or isinstance(item, Path) or type(item).__module__.startswith("PIL.")


def _is_text(item: Any) -> bool:
    """Whether it is one that a tokenizer reads: half of a surrogate pair is no letter."""
    return isinstance(item, str) and (item.isascii() or item == item.encode("utf-8", "ignore").decode("utf-8"))


@dataclass(frozen=True)
class Encoding:
    """How rows become a batch.

    Args:
        kind: "texts", "images" or "rows" of numbers.
        pick: What of a row is read.
        fits: Whether what was picked is of this kind.
        encode: A batch of what was picked, and of texts what the limit left out.
        details: For the manifest.
    """

    kind: str
    pick: Callable[[Any], Any]
    fits: Callable[[Any], bool]
    encode: Encode
    details: Mapping[str, Any]

    def values(self, rows: Sequence[Any], start: int = 0) -> list[Any]:
        """What is read of the rows, which must all be of one kind."""
        picked = [self.pick(row) for row in rows]
        for number, value in enumerate(picked, start):
            if not self.fits(value):
                what = {"texts": "a text", "images": "an image"}.get(self.kind, "numbers")
                kind = "broken text" if isinstance(value, str) else type(value).__name__
                got = f"{kind} in row {number} (counted from 0)"
                raise expected(f"{what} in every row", got, "leaving out rows without")
        return picked

    def batch(self, rows: Sequence[Any], start: int = 0) -> tuple[RawBatch, Cut | None]:
        """Rows from the one numbered `start` as a batch."""
        return self.encode(self.values(rows, start))


def encoding_of(row: Any, how: Preprocessing) -> Encoding:
    """The way of all rows, read off the first."""
    pick, details = _picking(row, how)
    value = pick(row)
    if isinstance(value, str):
        details = {**details, "max_length": how.length}
        return Encoding("texts", pick, _is_text, _tokenizing(how), details)
    if _is_image(value):
        return Encoding("images", pick, _is_image, _imaging(how), details)
    return Encoding(
        "rows", pick, lambda one: _axes(one) > 0 or isinstance(one, Mapping), partial(_stacked, how), details
    )


def _picking(row: Any, how: Preprocessing) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    """What of a row is read: the fields that the model takes, one column of a table, or the row without its label."""
    if isinstance(row, Mapping):
        known = [field for field in row if field in how.fields and _axes(row[field])]
        if how.column is None and any(field in TOKEN_FIELDS for field in known):
            return lambda one: {field: one[field] for field in known}, {}
        column = _column_of(row, how)
        return lambda one: one[column], {"column": column}
    if how.column is not None:
        raise expected("a table to read a column of", "rows without columns", "leaving out the column")
    if isinstance(row, tuple) and not is_ids(row):
        return lambda one: one[0], {}
    return lambda one: one, {}


def _column_of(row: Mapping[str, Any], how: Preprocessing) -> str:
    """The one column of texts or images, or one with a usual name; images where there are both and a processor."""
    columns = ", ".join(map(repr, row))
    if how.column is not None:
        if how.column not in row:
            raise expected(f"one of the columns {columns}", repr(how.column), "one of those")
        return how.column
    texts = [name for name, value in row.items() if isinstance(value, str)]
    images = [name for name, value in row.items() if _is_image(value)]
    found = images if images and (how.image_processor is not None or not texts) else texts
    usual = next((name for name in TEXT_COLUMNS if name in found), None)
    if len(found) == 1 or usual is not None:
        return usual or found[0]
    raise expected(
        "a column of texts or images, or one that the model takes by name",
        f"the columns {columns}",
        f"column={found[0] if found else next(iter(row), '')!r} (--column on the command line)",
    )


def _tokenizing(how: Preprocessing) -> Encode:
    tokenizer = how.tokenizer
    how.check_taken("input_ids", "texts")
    if tokenizer is None:
        hint = "a model folder that has one, token ids as data, or in Python tokenizer=…"
        raise expected("a tokenizer for texts", "none beside the model", hint)
    if getattr(tokenizer, "pad_token", None) is None and getattr(tokenizer, "eos_token", None) is not None:
        tokenizer.pad_token = tokenizer.eos_token

    def together(texts: list[str]) -> tuple[RawBatch, Cut]:
        found = tokenizer(texts, padding=True, truncation=True, max_length=how.length, return_tensors="pt")
        return dict(found), _cut(tokenizer, texts, found, how.length)

    def encode(texts: list[str]) -> tuple[RawBatch, Cut]:
        some = [str(text) for text in texts]
        sizes = [len(text) for text in some]
        if max(sizes) > _LONGEST:
            hint = "a blank line between paragraphs, or cutting it"
            raise expected(f"texts of at most {_LONGEST:,} characters", f"one of {max(sizes):,}", hint)
        if sum(sizes) <= _LONGEST:
            return together(some)
        ones, cuts = zip(*(together([text]) for text in some), strict=True)
        fields = {field: [one[field][0] for one in ones] for field in ones[0]}
        return dict(tokenizer.pad(fields, return_tensors="pt")), Cut(*map(sum, zip(*cuts, strict=True)))

    return encode


def _cut(tokenizer: Any, texts: Sequence[str], encoded: Any, length: int) -> Cut:
    """What was cut off: the tokenizers library keeps it; others are asked again for texts that reach the limit."""
    mask_BN = encoded.get("attention_mask", torch.ones_like(encoded["input_ids"]))
    lengths = [int(count) for count in mask_BN.sum(dim=1)]
    if (fast := getattr(encoded, "encodings", None)) is not None:
        went = [sum(more.special_tokens_mask.count(0) for more in one.overflowing) for one in fast]
    else:
        went = [
            max(0, len(tokenizer(text)["input_ids"]) - length) if kept >= length else 0
            for text, kept in zip(texts, lengths, strict=True)
        ]
    return Cut(sum(map(bool, went)), sum(went), sum(lengths) + sum(went))


def _imaging(how: Preprocessing) -> Encode:
    processor = how.image_processor
    how.check_taken("pixel_values", "images")
    if processor is None:
        hint = "a model folder that has one, pixels as data, or in Python image_processor=…"
        raise expected("an image processor for images", "none beside the model", hint)
    return lambda images: (dict(processor(images=list(map(_open_image, images)), return_tensors="pt")), None)


def _open_image(item: Any) -> Any:
    from PIL import Image

    if isinstance(item, Tensor):
        item = item.numpy(force=True)
    if isinstance(item, numpy.ndarray):
        channels_first = item.shape[0] in (1, 3, 4) and item.shape[2] not in (1, 3, 4)
        pixels = item.transpose(1, 2, 0) if channels_first else item
        item = Image.fromarray(numpy.ascontiguousarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels))
    return open_image(item) if isinstance(item, Path) else item.convert("RGB")


def _stacked(how: Preprocessing, rows: list[Any]) -> tuple[RawBatch, None]:
    """Rows of numbers as a batch; ids of different lengths are padded on the right, and masked."""
    if isinstance(rows[0], Mapping):
        joined: dict[str, Tensor] = {}
        for field in rows[0]:
            found = _joined(field, [row.get(field) for row in rows], how)
            joined = {**found, **joined, field: found[field]}  # a mask that is given, not one that is made
        _check_lengths(rows)
        return joined, None
    joined = _joined("input_ids" if is_ids(rows[0]) else "", rows, how)
    return joined if len(joined) > 1 else next(iter(joined.values())), None


def _check_lengths(rows: Sequence[Mapping[str, Any]]) -> None:
    """What speaks of tokens one by one has as many entries in each row, before any is filled up."""
    for side in ("", "decoder_"):
        ids = f"{side}input_ids"
        beside = [f"{side}{name}" for name in PER_TOKEN if ids in rows[0] and f"{side}{name}" in rows[0]]
        for number, row in enumerate(rows):
            for name in beside:
                if len(row[name]) != len(row[ids]):
                    got = f"{len(row[name])} in row {number} of its batch"
                    hint = "the mask that came with those tokens"
                    raise expected(f"{name} for {len(row[ids])} tokens", got, hint)


def _joined(field: str, values: list[Any], how: Preprocessing) -> dict[str, Tensor]:
    found = [as_tensor(value, field) for value in values]
    tensors = [one for one in found if one is not None]
    if len(tensors) < len(found):
        raise expected(f"numbers in {field or 'every row'!r}", "rows without", "leaving those out")
    if len({one.shape for one in tensors}) == 1:
        return {field: torch.stack(tensors)}
    mask = field.removesuffix("input_ids") + "attention_mask"
    ids = field.endswith("input_ids")
    if any(one.ndim != 1 or not is_whole(one) for one in tensors) or (ids and mask not in how.fields):
        shapes = " and ".join(sorted({str(tuple(one.shape)) for one in tensors})[:2])
        hint = "batches that are padded and masked as the model wants it"
        raise expected(f"rows of one shape{f' in {field!r}' if field else ''}", shapes, hint)
    filler = (getattr(how.tokenizer, "pad_token_id", None) or 0) if ids else 0
    padded = {field: pad_sequence(tensors, batch_first=True, padding_value=filler)}
    if not ids:
        return padded
    return {**padded, mask: pad_sequence([torch.ones_like(one) for one in tensors], batch_first=True)}
