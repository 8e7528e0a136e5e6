"""What files of tensors say they hold, checked before memory is taken for it, and networks no larger than that."""

from __future__ import annotations

import math
import struct
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules import module as registration

from unsmooth.errors import expected
from unsmooth.files import Careful, open_file, parse_json
from unsmooth.schema import parse

_LONGEST_HEADER = 16 << 20
_MOST_DIMENSIONS = 16
# Of the types that safetensors' format names.
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16},
    **{"I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64},
}
_AGAIN = "to download it again"


@dataclass(frozen=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True)
class Header:
    """What a file of tensors holds.

    Args:
        shapes: By the tensor's name.
        bytes: Of all tensors.
        metadata: Words that were saved with them.
    """

    shapes: Mapping[str, tuple[int, ...]]
    bytes: int
    metadata: Mapping[str, str]


def read_header(path: Path) -> Header:
    """The header of a safetensors file, compared with the file: every tensor is there, whole, and has its own bytes.

    Raises:
        FileNotFoundError: There is no such file.
        UnsmoothError: What is wrong with it.
    """
    where = f"a complete safetensors file {str(path)!r}"
    with open_file(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
            raise expected(where, f"a truncated or damaged file of {size:,} bytes", _AGAIN)
        raw = file.read(length)
    try:
        plain: dict[str, Any] = parse(dict, parse_json(raw.decode("utf-8"), repr(str(path))))
    except UnicodeDecodeError:
        raise expected(where, f"a truncated or damaged file of {size:,} bytes", _AGAIN) from None
    metadata = parse(dict[str, str], plain.pop("__metadata__", {}), where=repr(str(path)))
    entries = parse(dict[str, _Entry], plain, where=repr(str(path)))
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        start, stop = entry.data_offsets
        if start != end or stop < start or (stop - start) * 8 != _bits(entry):
            raise expected(where, f"other bytes than {name[:80]!r} needs", _AGAIN)
        end = stop
    if end != size - 8 - length:
        raise expected(where, f"a truncated or damaged file of {size:,} bytes", _AGAIN)
    return Header({name: entry.shape for name, entry in entries.items()}, end, metadata)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, whose header is read first; raises as `read_header` does."""
    read_header(path)
    return load_file(path)


def _bits(entry: _Entry) -> int:
    """Of a tensor; −1 where it can be none."""
    width = _BITS.get(entry.dtype, -1)
    if len(entry.shape) > _MOST_DIMENSIONS or any(side < 0 for side in entry.shape) or width < 0:
        return -1
    return math.prod(entry.shape) * width


def first_mismatch(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> str | None:
    """The first tensor that is not there, not wanted, or of another shape; None where all fit."""
    for name in (*wanted, *found):
        if name not in found:
            return f"no {name!r}"
        if name not in wanted:
            return f"{name[:80]!r}, which it does not have"
        if wanted[name] != found[name]:
            return f"{name!r} of shape {found[name]} where {wanted[name]} is due"
    return None


@contextmanager
def no_larger(tensors: int, size: int) -> Iterator[None]:
    """Refuse to build, within, a network that is larger than the file which is to fill it.

    Configurations are a few hundred bytes and can ask for any number of layers of any width. Every parameter and
    buffer is counted when its module takes it: on the meta device that is before any memory is taken for it.

    Args:
        tensors: How many the file has. Tied weights and heads that it lacks may come on top.
        size: Bytes of its tensors. Four bits are the fewest that a weight is kept in.
    """
    here = threading.get_ident()
    most, room = 4 * tensors + 64, 8 * size + (1 << 24)
    seen = [0, 0]

    def count(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        if threading.get_ident() != here:
            return
        seen[0] += 1
        seen[1] += 0 if tensor is None else tensor.numel()
        if seen[0] > most or seen[1] > room:
            got = f"more than {most:,} tensors" if seen[0] > most else f"more than {room:,} numbers"
            wanted = f"a network that {tensors:,} tensors of {size:,} bytes fill"
            raise expected(wanted, got, "the configuration that belongs to these weights")

    hooks = [
        registration.register_module_parameter_registration_hook(count),
        registration.register_module_buffer_registration_hook(count),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def check_pickle(path: Path) -> None:
    """Refuse a file of torch's whose parts are larger than they are on the disk: torch packs nothing.

    Raises:
        FileNotFoundError: There is no such file.
        UnsmoothError: It is no regular file, or is packed.
    """
    with open_file(path) as file:
        check_unpacked(file, path)


def check_unpacked(file: IO[bytes], path: Path) -> None:
    """The same of a file that is open, or of a part of it."""
    if not zipfile.is_zipfile(file):
        return  # torch's older form, which cannot be packed
    size = file.seek(0, 2)
    try:
        with zipfile.ZipFile(Careful(file)) as archive:
            whole = sum(part.file_size for part in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error):
        raise expected(f"a whole file of torch's at {str(path)!r}", "a damaged one", _AGAIN) from None
    if whole > size:
        raise expected(f"at most {size:,} bytes in {str(path)!r}", f"{whole:,} once unpacked", "a safetensors copy")


# Sizes of the plain types of GGUF's metadata, by their number; 8 is text and 9 a list.
_GGUF_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_GGUF_TEXT, _GGUF_LIST = 8, 9
_MOST_ENTRIES = 1 << 20


def read_gguf_header(path: Path) -> Header:
    """The header of a GGUF file: what is in it is counted before any library takes memory for it.

    Raises:
        UnsmoothError: What is wrong with it.
    """
    with open_file(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        if (magic := file.read(4)) != b"GGUF":
            raise expected(f"a GGUF file {str(path)!r}", f"one that starts with {magic!r}", _AGAIN)
        try:
            return _Gguf(file, size).header()
        except (struct.error, ValueError, OverflowError):
            got = f"a truncated or damaged file of {size:,} bytes"
            raise expected(f"a complete GGUF file {str(path)!r}", got, _AGAIN) from None


class _Gguf:
    """Reads on from the magic number; whatever leads out of the file or its bounds is a ValueError."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file, self.size, self.room = file, size, _MOST_ENTRIES

    def header(self) -> Header:
        version, tensors, entries = self.numbers("<IQQ")
        if version not in (2, 3):  # the first had other sizes, and is read by nobody; else it is of another byte order
            raise ValueError(version)
        self.take(tensors + entries)
        for _ in range(entries):
            self.text()
            self.value(self.numbers("<I")[0])
        shapes = {}
        for _ in range(tensors):
            name, count = self.text(), self.numbers("<I")[0]
            if count > _MOST_DIMENSIONS:
                raise ValueError(count)
            shapes[name] = self.numbers(f"<{count}Q")
            _, offset = self.numbers("<IQ")
            if offset > self.size:
                raise ValueError(offset)
        if sum(map(math.prod, shapes.values())) > 8 * self.size:
            raise ValueError
        return Header(shapes, self.size, {})

    def take(self, count: int) -> None:
        self.room -= count
        if self.room < 0:
            raise ValueError(count)

    def numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self.file.read(struct.calcsize(form)))

    def text(self) -> str:
        length = self.numbers("<Q")[0]
        if length > min(self.size, 1 << 20):
            raise ValueError(length)
        return self.file.read(length).decode("utf-8")

    def value(self, kind: int, depth: int = 0) -> None:
        if kind == _GGUF_TEXT:
            length = self.numbers("<Q")[0]
            self.skip(length)
        elif kind == _GGUF_LIST and depth < 4:
            inner, count = self.numbers("<IQ")
            self.take(count)
            for _ in range(count):
                self.value(inner, depth + 1)
        elif kind in _GGUF_SIZES:
            self.skip(_GGUF_SIZES[kind])
        else:
            raise ValueError(kind)

    def skip(self, length: int) -> None:
        if length > self.size or self.file.seek(length, 1) > self.size:
            raise ValueError(length)
