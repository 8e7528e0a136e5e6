"""Texts as tokens on disk: encoded once, piece by piece, and read from there without filling memory."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy
import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.files import open_file, read_json, whole_folder, write_whole
from unsmooth.training.data.digests import file_digest
from unsmooth.training.data.hold_out import nothing_left
from unsmooth.training.data.text_stream import Stretch, splits
from unsmooth.training.data.tokenizing import ByteTokenizer, Tokenizer, load_tokenizer, train_bpe

_FORMAT = 2
# Enough text for the pairs of a vocabulary of 50,000; learning from all of it takes longer, not better.
_SAMPLE = 32 << 20
# Pieces that are encoded at a time, over all cores: 2 MiB.
_TOGETHER = 32


@dataclass(frozen=True)
class Tokens:
    """Ids of one split, in a file or in memory.

    Args:
        source: The file, or the ids themselves.
        dtype: Of the file: "uint8", "uint16" or "int32".
        length: How many tokens.
        start: Which one is the first.
    """

    source: Path | numpy.ndarray
    dtype: str
    length: int
    start: int = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> Tensor:
        """The ids of a slice, int64."""
        return torch.from_numpy(self._array()[part].astype(numpy.int64))

    def windows(self, starts_B: Tensor, length: int) -> Tensor:
        """`length` ids from each start, (batch, length) int64.

        >>> held(numpy.arange(10)).windows(torch.tensor([0, 7]), 3)
        tensor([[0, 1, 2],
                [7, 8, 9]])
        """
        places = starts_B.cpu().numpy()[:, None] + numpy.arange(length)
        return torch.from_numpy(self._array()[places].astype(numpy.int64))

    def part(self, start: int, stop: int) -> Tokens:
        """Those from `start` to `stop`, where they are.

        >>> held(numpy.arange(10)).part(2, 8).part(1, 6)[:]
        tensor([3, 4, 5, 6, 7])
        """
        return replace(self, start=self.start + start, length=stop - start)

    def whole(self, dtype: torch.dtype = torch.int64) -> Tensor:
        """All ids, in memory."""
        return torch.from_numpy(self._array().astype(numpy.int32)).to(dtype)

    def _array(self) -> numpy.ndarray:
        # Opened anew each time, which is cheap: there is no open file to carry into other processes.
        if isinstance(self.source, Path):
            first = self.start * numpy.dtype(self.dtype).itemsize
            return numpy.memmap(self.source, dtype=self.dtype, mode="r", offset=first, shape=(self.length,))
        return self.source[self.start : self.start + self.length]


@dataclass(frozen=True)
class Text:
    """A text as tokens.

    Args:
        train: To learn from.
        valid: To choose by.
        vocabulary: Ids are below this number.
        tokenizer: Text to ids and back.
        digest: Of the text.
        name: What it is called.
        synthetic: Made up, not read.
        test: To report on; None where the text has no third split.
    """

    train: Tokens
    valid: Tokens
    vocabulary: int
    tokenizer: Tokenizer
    digest: str
    name: str
    synthetic: bool = False
    test: Tokens | None = None


def open_text(
    path: str | Path,
    tokenizer: Literal["bytes", "bpe"] = "bytes",
    vocabulary: int = 32_768,
    *,
    special: bool = False,
    name: str | None = None,
    cache: str | Path = "data/tokens",
    progress: Callable[[int, int], None] | None = None,
) -> Text:
    """A text as tokens, encoded now or found in the cache.

    Args:
        path: A text, a ``.jsonl`` with "text" in each line, either with ``.gz``; or a folder of them. There, files
            named after train, valid and test are those splits; any other text is cut after 90 % and 95 % of its bytes.
        tokenizer: "bytes", or "bpe", learned from a sample of the training split.
        vocabulary: Tokens of the BPE.
        special: Reserve ids 0 to 4 with bytes too; BPE always does.
        name: What to call it; the name of the file or folder unless told.
        cache: Where the tokens are kept.
        progress: Called with the bytes encoded so far and in all.
    """
    if tokenizer not in ("bytes", "bpe"):
        raise unknown_name("tokenizer", tokenizer, ("bytes", "bpe"))
    path = Path(path)
    stretches, digest = splits(path)
    kind = f"bytes{'-special' if special else ''}" if tokenizer == "bytes" else f"bpe-{vocabulary}"
    folder = Path(cache) / f"{digest[:16]}-{kind}"
    called = name or path.name.removesuffix(".gz")
    found = _read(folder, called, digest)
    if found is None:
        new = ByteTokenizer(special) if tokenizer == "bytes" else train_bpe(_sample(stretches["train"]), vocabulary)
        _encode(folder, stretches, new, progress)
        found = _read(folder, called, digest)
    if found is None:
        raise expected(f"whole tokens in {folder}", "broken ones", "removing that folder")
    return found


def held(ids: numpy.ndarray) -> Tokens:
    """Tokens in memory."""
    return Tokens(ids, str(ids.dtype), len(ids))


def end_held_out(text: Text, share: float, sequence: int, limit: int | None = None) -> Text:
    """The end of the training split in place of the validation split; the tokenizer stays that of all of it.

    Args:
        text: With the splits that it has.
        share: Of the training split.
        sequence: Tokens of one sequence, which must fit in both parts.
        limit: Only so many sequences of the training split are used, from its beginning.

    >>> text = Text(held(numpy.arange(100)), held(numpy.arange(3)), 256, ByteTokenizer(), "", "short")
    >>> found = end_held_out(text, 0.25, sequence=4, limit=20)  # 20 sequences of 4, and the last one's target
    >>> len(found.train), len(found.valid), found.valid[:1].item()
    (61, 20, 61)
    """
    whole = len(text.train) if limit is None else min(len(text.train), limit * sequence + 1)
    cut = whole - math.floor(share * whole + 0.5)
    if min(cut, whole - cut) < sequence + 1:
        what = f"{sequence + 1} tokens on both sides of a hold-out of {share:g}"
        raise nothing_left(what, f"{cut} to learn from and {whole - cut} to evaluate on in {text.name}")
    return replace(text, train=text.train.part(0, cut), valid=text.train.part(cut, whole))


def check_length(text: Text, sequence: int) -> None:
    """Refuse a text with a split in which not even one sequence fits.

    >>> check_length(Text(held(numpy.arange(9)), held(numpy.arange(3)), 256, ByteTokenizer(), "", "short"), 8)
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected at least 9 tokens in valid of short but got 3. Try a longer text, or ...
    """
    for split, tokens in (("train", text.train), ("valid", text.valid), ("test", text.test)):
        # One more than the sequence: each token is asked for the next.
        if tokens is not None and len(tokens) < sequence + 1:
            hint = "a longer text, or a shorter sequence with --set length=…"
            raise expected(f"at least {sequence + 1} tokens in {split} of {text.name}", len(tokens), hint)


def dtype_for(vocabulary: int) -> str:
    """The smallest type that holds the ids.

    >>> dtype_for(256), dtype_for(261), dtype_for(100_000)
    ('uint8', 'uint16', 'int32')
    """
    return "uint8" if vocabulary <= 1 << 8 else "uint16" if vocabulary <= 1 << 16 else "int32"


def _sample(stretch: Stretch) -> Iterator[str]:
    """Pieces from all over the training split, at most `_SAMPLE` bytes of them."""
    every = -(-(stretch.stop - stretch.start) // _SAMPLE) or 1
    for place, piece in enumerate(stretch.lines()):
        if place % every == 0:
            yield piece.decode("utf-8", "replace")


def _encode(
    folder: Path, stretches: dict[str, Stretch], tokenizer: Tokenizer, progress: Callable[[int, int], None] | None
) -> None:
    sizes: dict[str, dict[str, Any]] = {}
    dtype = dtype_for(tokenizer.vocabulary)
    total, done = sum(each.stop - each.start for each in stretches.values()), 0
    try:
        with whole_folder(folder, replace=True) as draft:
            for split, stretch in stretches.items():
                count = 0
                with (draft / f"{split}.bin").open("wb") as file:
                    pieces = stretch.lines()
                    while batch := list(islice(pieces, _TOGETHER)):
                        for ids in tokenizer.encode_many(batch):
                            file.write(ids.astype(dtype, copy=False).tobytes())
                            count += len(ids)
                        done += sum(map(len, batch))
                        if progress is not None:
                            progress(done, total)
                digest = file_digest(draft / f"{split}.bin")
                sizes[split] = {"tokens": count, "bytes": stretch.stop - stretch.start, "sha256": digest}
            tokenizer.save(draft)
            record = {"format": _FORMAT, "dtype": dtype, "splits": sizes}
            write_whole(draft / "tokens.json", json.dumps(record, indent=1))
    except UnsmoothError:
        # Another process may have put the same tokens there in the meantime.
        if not (folder / "tokens.json").exists():
            raise


def _read(folder: Path, name: str, digest: str) -> Text | None:
    """What is in the cache; None where it is not there or not whole."""
    try:
        record = read_json(folder / "tokens.json", _Cached)
        found: dict[str, Tokens] = {}
        for split, size in (
            ("train", record.splits.train),
            ("valid", record.splits.valid),
            ("test", record.splits.test),
        ):
            if size is not None:
                with open_file(folder / f"{split}.bin") as file:
                    whole = os.fstat(file.fileno()).st_size == size.tokens * numpy.dtype(record.dtype).itemsize
                # A flipped bit is another token, or none of the vocabulary's.
                if not whole or record.format != _FORMAT or file_digest(folder / f"{split}.bin") != size.sha256:
                    return None
                empty = numpy.empty(0, dtype=record.dtype)  # nothing cannot be mapped
                found[split] = Tokens(folder / f"{split}.bin" if size.tokens else empty, record.dtype, size.tokens)
        tokenizer = load_tokenizer(folder)
        valid = found["valid" if "valid" in found else "test"]
    except (OSError, UnsmoothError, KeyError):
        return None
    return Text(found["train"], valid, tokenizer.vocabulary, tokenizer, digest, name, test=found.get("test"))


@dataclass(frozen=True)
class _Size:
    tokens: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class _Splits:
    train: _Size
    valid: _Size | None = None
    test: _Size | None = None


@dataclass(frozen=True)
class _Cached:
    format: int
    dtype: Literal["uint8", "uint16", "int32"]
    splits: _Splits
