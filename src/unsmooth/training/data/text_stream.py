"""Texts as streams of bytes: files, folders of files, JSON lines, gzip; never a whole text in memory."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from unsmooth.errors import expected
from unsmooth.files import lines_of, open_file, parse_json
from unsmooth.training.data.images import missing

BLOCK = 1 << 20
_SUFFIXES = (".txt", ".text", ".md", ".utf8", ".raw", ".tokens", ".jsonl")
_SPLITS = {"train": ("train",), "valid": ("valid", "val", "validation", "dev"), "test": ("test",)}
# The usual split of enwik8: 90, 5 and 5 million bytes (Mahoney 2009, "Large text compression benchmark").
_CUTS = {"train": (0, 90), "valid": (90, 95), "test": (95, 100)}


@dataclass(frozen=True)
class Stretch:
    """The bytes from `start` to `stop` of the texts of some files, one after the other."""

    files: tuple[Path, ...]
    start: int
    stop: int

    def pieces(self) -> Iterator[bytes]:
        """The bytes, in pieces of at most a mebibyte or one line of JSON."""
        at = 0
        for piece in _pieces(self.files):
            begin, end = max(self.start - at, 0), self.stop - at
            if end <= 0:
                return
            if part := piece[begin:end]:
                yield part
            at += len(piece)

    def lines(self, size: int = 1 << 16) -> Iterator[bytes]:
        """The same bytes in pieces of about `size` that end with a line where lines are not longer than that."""
        rest = b""
        for piece in self.pieces():
            rest += piece
            at = 0
            # A character has at most four bytes: the last one of a piece is here whole.
            while len(rest) - at >= size + 4:
                cut = rest.rfind(b"\n", at, at + size) + 1
                cut = cut if cut > at else _character_end(rest, at + size)
                yield rest[at:cut]
                at = cut
            rest = rest[at:]
        if rest:
            yield rest


def splits(path: Path) -> tuple[dict[str, Stretch], str]:
    """The train, valid and test stretches of a text, and a digest of its content.

    Files that are named after a split are that split. Else the text is cut after 90 % and 95 % of its bytes.
    """
    named = _named(path)
    whole = {name: _measured(files) for name, files in named.items()}
    if set(whole) > {"train"}:
        digest = hashlib.sha256("".join(f"{name}:{each}" for name, (_, each) in sorted(whole.items())).encode())
        return {name: Stretch(named[name], 0, size) for name, (size, _) in whole.items()}, digest.hexdigest()
    ((name, (size, digest_of_all)),) = whole.items()
    cut = {split: Stretch(named[name], size * a // 100, size * b // 100) for split, (a, b) in _CUTS.items()}
    return cut, digest_of_all


def _named(path: Path) -> Mapping[str, tuple[Path, ...]]:
    if not path.exists():
        raise expected(f"a text in {path}", "no such file or folder", "a path that exists")
    if path.is_file():
        return {"train": (path,)}
    files = sorted(each for each in path.rglob("*") if each.is_file() and _is_text(each.relative_to(path)))
    if not files:
        raise expected(f"texts ({', '.join(_SUFFIXES)}) in {path}", missing(path), "a file, or another folder")
    found = {split: tuple(file for file in files if _is_named(file, names)) for split, names in _SPLITS.items()}
    if not found["train"]:
        return {"train": tuple(files)}
    return {split: files_of for split, files_of in found.items() if files_of}


def _is_text(path: Path) -> bool:
    if any(part.startswith(".") for part in path.parts):
        return False
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return not suffixes or suffixes[-1] in _SUFFIXES


def _is_named(path: Path, names: tuple[str, ...]) -> bool:
    return not set(path.name.lower().replace("-", ".").replace("_", ".").split(".")).isdisjoint(names)


def _measured(files: tuple[Path, ...]) -> tuple[int, str]:
    size, state = 0, hashlib.sha256()
    for piece in _pieces(files):
        size += len(piece)
        state.update(piece)
    return size, state.hexdigest()


def _pieces(files: tuple[Path, ...]) -> Iterator[bytes]:
    for path in files:
        is_json = path.name.lower().removesuffix(".gz").endswith(".jsonl")
        try:
            with _opened(path) as file:
                yield from _json_lines(file, path) if is_json else iter(lambda: file.read(BLOCK), b"")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise expected(f"a whole gzip file in {path}", str(error), "getting it again") from None
        except OSError as error:
            raise expected(f"a readable file in {path}", error.strerror or type(error).__name__, "another") from None


def _opened(path: Path) -> IO[bytes]:
    file = open_file(path)
    return gzip.GzipFile(fileobj=file) if path.name.lower().endswith(".gz") else file  # type: ignore[return-value]


def _json_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    for number, line in enumerate(lines_of(file, path), 1):
        if not line.strip():
            continue
        try:
            yield str(parse_json(line.decode("utf-8"), "it")["text"]).encode("utf-8", "replace") + b"\n"
        except (ValueError, KeyError, TypeError) as error:
            got = f"{type(error).__name__} in line {number} of {path}"
            raise expected('a JSON object with "text" in each line', got, "mending that line") from None


def _character_end(text: bytes, at: int) -> int:
    """The first place from `at` on, at most three further, where a UTF-8 character begins; `at` in what is no UTF-8."""
    return next((place for place in range(at, at + 4) if text[place] & 0xC0 != 0x80), at)
