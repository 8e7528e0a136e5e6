"""Batches, how they are read and what is known of where they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy
import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError, expected
from unsmooth.files import lines_of, open_file, parse_json

RawBatch: TypeAlias = Tensor | Mapping[str, Any]

TOKEN_FIELDS: Mapping[str, int] = {
    "input_ids": 1,
    "inputs_embeds": 2,
    "pixel_values": 3,
    "input_features": 2,
    "input_values": 1,
}
"""Fields that become tokens, with the number of axes that one sequence has there."""
# Fields with an entry for each token.
PER_TOKEN = ("attention_mask", "token_type_ids", "special_tokens_mask", "token_mask")
# What transformers calls the inputs of its models.
KINDS = {"input_ids": "texts", "pixel_values": "images", "input_features": "sounds", "input_values": "sounds"}
# A page of text per sequence: long enough for a stable mean, short enough for any model's positions.
DEFAULT_MAX_LENGTH = 512


@dataclass(frozen=True)
class Source:
    """Batches that can be walked through, with what the manifest says about them.

    Args:
        kind: "texts", "images", "tensor", "dict", "rows" or "loader".
        read: Starts a fresh walk over the batches.
        batches: How many there are, None where unknown.
        replayable: Whether `read` gives the same batches again.
        sharded: Whether each rank's source already holds only that rank's share.
        details: More for the manifest.
        cuts: Of texts, what the limit left out, by the number of the batch; filled as batches are read.
    """

    kind: str
    read: Callable[[], Iterator[RawBatch]]
    batches: int | None
    details: Mapping[str, Any]
    replayable: bool = True
    sharded: bool = False
    cuts: dict[int, Cut] = field(default_factory=dict)


class Cut(NamedTuple):
    """What a limit left out of some texts.

    Attributes:
        texts: How many were cut.
        tokens: How many tokens went.
        of_tokens: How many there were, special tokens included.
    """

    texts: int
    tokens: int
    of_tokens: int


@dataclass(frozen=True)
class Preprocessing:
    """How texts and images become tensors.

    Args:
        tokenizer: For texts.
        image_processor: For images.
        batch_size: Sequences per batch, for what is not batched yet.
        max_length: Tokens after which a text is cut, None for the default.
        model_limit: Tokens that the model's positions allow.
        column: The column of a table to read, None for the one that the rules find.
        fields: What the model takes by name.
        check: Refuses a batch that the model cannot be called with.
    """

    tokenizer: Any | None
    image_processor: Any | None
    batch_size: int
    max_length: int | None
    model_limit: int | None
    column: str | None = None
    fields: frozenset[str] = frozenset()
    check: Callable[[RawBatch], None] = lambda batch: None

    def check_taken(self, field: str, kind: str) -> None:
        """Refuse data of a kind that the model has no input for, where it names its inputs as transformers does."""
        own = next((words for name, words in KINDS.items() if name in self.fields), None)
        if own is not None and field not in self.fields:
            raise expected(f"{own}, which this model reads", kind, f"{own} as data")

    @property
    def length(self) -> int:
        """Tokens after which a text is cut."""
        limits = [self.max_length or DEFAULT_MAX_LENGTH, self.model_limit]
        if self.max_length is None:
            # Tokenizers without a limit say 1e30.
            limits.append(getattr(self.tokenizer, "model_max_length", None))
        return int(min(limit for limit in limits if limit))


def read_texts(path: Path, column: str | None = None) -> list[str]:
    """Texts of one file: `column` of each line of .jsonl ("text"), else paragraphs, else lines where none is blank."""
    try:
        with open_file(path) as file:
            content = b"".join(lines_of(file, path)).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        got = "one that is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        hint = "its text in a file of its own (.txt, .md, .jsonl)"
        raise expected(f"a readable text file at {path.name}", got, hint) from None
    if path.suffix.lower() == ".jsonl":
        numbered = enumerate(content.splitlines(), 1)
        return [_jsonl_text(path, number, line, column or "text") for number, line in numbered if line.strip()]
    if column is not None:
        raise expected("a table or a .jsonl file, to read a column of", path.name, "leaving out the column")
    lines = [line.strip() for line in content.splitlines()]
    paragraphs = [" ".join(block.split("\n")) for block in "\n".join(lines).split("\n\n")]
    blocks = paragraphs if len(paragraphs) > 1 else lines
    return [block.strip() for block in blocks if block.strip()]


def _jsonl_text(path: Path, number: int, line: str, column: str) -> str:
    try:
        return str(parse_json(line, path.name)[column])
    except (UnsmoothError, KeyError, TypeError):
        wanted = f'{{"{column}": …}} on line {number} of {path.name}'
        raise expected(wanted, repr(line[:40]), "one object a line, or another column") from None


def sequences_of(batch: Mapping[str, Any]) -> int | None:
    """How many sequences a batch has, by its tokens; None where it cannot be cut into smaller ones.

    That is where a field differs from it in its first dimension, as pixels do that are patches of all images in a row.

    >>> sequences_of({"input_ids": torch.zeros(2, 5), "attention_mask": torch.zeros(2, 5)})
    2
    >>> sequences_of({"input_ids": torch.zeros(2, 5), "pixel_values": torch.zeros(24, 6)}) is None
    True
    """
    sizes = {field: len(value) for field, value in batch.items() if isinstance(value, Tensor) and value.ndim}
    named = (sizes[field] for field in TOKEN_FIELDS if field in sizes)
    size = next(named, next(iter(sizes.values()), 0))
    return size if set(sizes.values()) <= {size, 1} else None


def cut_batch(batch: Mapping[str, Any], size: int, start: int, stop: int) -> dict[str, Any]:
    """Some of the `size` sequences of a batch, with what all of them share."""
    return {
        field: value[start:stop] if isinstance(value, Tensor) and value.ndim and len(value) == size else value
        for field, value in batch.items()
    }


def first_of_pair(batch: Any) -> RawBatch:
    """Data sets yield (input, label): the input is what the model reads. Arrays and lists of numbers become tensors."""
    numbers = as_tensor(batch)
    if numbers is None and isinstance(batch, list | tuple) and batch:
        batch = batch[0]
        numbers = as_tensor(batch)
    if numbers is not None:
        return numbers
    if isinstance(batch, Mapping):
        return tensors(batch)
    raise expected(
        "batches that are tensors, dicts of tensors or (tensor, label) pairs",
        type(batch).__name__,
        "a collate_fn",
    )


def tensors(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields whose arrays are tensors, as are lists of tokens, ids and masks; whatever else stays as it is."""
    found = dict(fields)
    for name, value in fields.items():
        listed = isinstance(value, list | tuple) and not (name in TOKEN_FIELDS or name.endswith(("_ids", "_mask")))
        if not listed and (numbers := as_tensor(value, name)) is not None:
            found[name] = numbers
    return found


def as_tensor(value: Any, field: str = "input_ids") -> Tensor | None:
    """Numbers as a tensor, None for anything else; whole ones that are ids as int64, whatever they were stored as.

    >>> as_tensor(numpy.array([[1, 2]], dtype=numpy.int8)), as_tensor([[1, 2]]), as_tensor(["a"])
    (tensor([[1, 2]]), tensor([[1, 2]]), None)
    """
    if isinstance(value, list | tuple):
        leaf: Any = value
        while isinstance(leaf, list | tuple) and leaf:
            leaf = leaf[0]
        if not isinstance(leaf, int | float | numpy.number):
            return None
        try:
            value = numpy.asarray(value)
            value = value.astype(numpy.float32) if value.dtype.kind == "f" else value
        except ValueError:
            return None
    if isinstance(value, numpy.ndarray):
        if value.dtype.kind not in "biuf":
            return None
        # torch reads neither another byte order nor negative strides, and warns of what may not be written.
        value = value.astype(numpy.int64) if value.dtype.kind == "u" and value.itemsize > 1 else value
        value = torch.from_numpy(numpy.require(value, value.dtype.newbyteorder("="), ("C", "W")))
    if not isinstance(value, Tensor):
        return None
    if value.is_nested or value.layout != torch.strided:
        kind = "nested" if value.is_nested else "sparse"
        raise expected("dense tensors", f"one that is {kind}", "tensor.to_dense(), or a padded one with its mask")
    return value.long() if field.endswith("ids") and value.ndim <= 2 and is_whole(value) else value


def is_whole(tensor: Tensor) -> bool:
    """Whether its numbers are whole, as ids are and masks of True and False are not."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def to_device(batch: RawBatch, device: torch.device) -> RawBatch:
    """Move every tensor of a batch."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    return {
        key: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value for key, value in batch.items()
    }
