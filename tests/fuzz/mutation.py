"""Valid files made wrong: JSON by its kinds, files of tensors by their headers, bytes by flips and cuts."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

_DEEP = 100_000
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 7, 10**6, 10**9, 2**31, 2**63, 10**19, -(10**12), 10**400),
    *(0.0, -0.5, 1e-320, 1e38, 1e155, 1.7e308, -1.7e308, float("nan"), float("inf"), -float("inf")),
    *(
        "",
        "x",
        "\x00",
        "\x1b[2J\u202e\x9b31m",
        "</script>",
        "\ud800",
        "é" * 9,
        "a" * 20_000,
        "../outside/a",
        "/etc/passwd",
    ),
    *("mean_cosine", "residual", "smoothing", "step", "nan", "1e999", "\n\r\t", "{{7*7}}", "[bold]", "%s%n"),
    *([], {}, [[]], [None], [1, 2, 3], {"a": {}}, {"": 0}, [0] * 5_000, {"\x1b[31m": [1]}),
)
_STEERING = ("\x1b[2J", "\x1b]0;title\x07", "\u202e", "\x9b31m", "\r", "[bold]", "</script>", "\ud800")


def deep(levels: int, within: bool) -> Any:
    """Lists or objects in one another."""
    found: Any = 0
    for _ in range(levels):
        found = {"a": found} if within else [found]
    return found


def places(content: Any) -> list[tuple[Any, Any]]:
    """Every container with every key or index in it."""
    found, level = [], [content]
    while level:
        one = level.pop()
        inside = list(one.items()) if isinstance(one, dict) else list(enumerate(one))
        found += [(one, key) for key, _ in inside]
        level += [value for _, value in inside if isinstance(value, dict | list)]
    return found


def change_json(random: Random, content: Any) -> Any:
    """One to three values, keys or lists of plain data, changed; or words or whole numbers of it, all through."""
    if isinstance(content, dict) and (all_through := random.random()) < 0.15:
        return _rename(random, content) if all_through < 0.1 else _enlarge(random, content)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if not (isinstance(content, dict | list) and (known := places(content))):
            return random.choice(_ODD)
        # Every level as often as the next: else rows of numbers would get all of it.
        by_kind: dict[Any, list[tuple[Any, Any]]] = {}
        for home, key in known:
            by_kind.setdefault(key if isinstance(key, str) else ("item", len(home) > 3), []).append((home, key))
        alike = by_kind[random.choice(list(by_kind))]
        home, key = random.choice(alike)
        kind = random.random()
        if kind < 0.1:  # what stands in two places of one kind, exchanged
            other, place = random.choice(alike)
            # Copies: one may lie in the other, which would then hold itself.
            home[key], other[place] = deepcopy(other[place]), deepcopy(home[key])
        elif kind < 0.5:
            home[key] = _alike(random, home[key], known)
        else:
            _change(random, home, key, known)
    return content


def _rename(random: Random, content: dict[str, Any]) -> Any:
    """Words marked wherever they stand, few or many of them, so that what belongs together still does."""
    words = sorted({home[key] for home, key in places(content) if isinstance(home[key], str)})
    mark, share = random.choice(_STEERING), random.choice((0.05, 0.4))
    new = {word: word + mark for word in words if random.random() < share}

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {new.get(key, key): renamed(one) for key, one in value.items()}
        if isinstance(value, list):
            return [renamed(one) for one in value]
        return new.get(value, value) if isinstance(value, str) else value

    return renamed(content)


def _enlarge(random: Random, content: dict[str, Any]) -> Any:
    """Whole numbers multiplied wherever they stand, so that sizes which fit together still do."""
    factor = random.choice((2, 16, 1000, 10**6))

    def enlarged(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: enlarged(one) for key, one in value.items()}
        if isinstance(value, list):
            return [enlarged(one) for one in value]
        return factor * value if type(value) is int else value

    return enlarged(content)


def _alike(random: Random, value: Any, known: list[tuple[Any, Any]]) -> Any:
    """Another value of the same kind: that passes every check but those of ranges, and of what fits together."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((value + 1, value - 1, -value, 2 * value, 1000 * value, 0, 1, 4096, 10**6, 10**9, 2**62))
    if isinstance(value, float):
        return random.choice((-value, value + 1, 1e6 * value, 1e-6 * value, 0.0, 1e300, -1e300, 1e-300))
    if isinstance(value, str):
        words = [home[key] for home, key in known if isinstance(home[key], str)]
        return random.choice((random.choice(words), value + random.choice(_STEERING), value[1:], value.upper()))
    if isinstance(value, list):
        return random.choice((value[::-1], value[1:], value + value[:1], random.sample(value, len(value))))
    if isinstance(value, dict):
        names = random.sample(list(value), len(value))
        return dict(zip(names, value.values(), strict=True))
    return random.choice(_ODD)


def _change(random: Random, home: Any, key: Any, known: list[tuple[Any, Any]]) -> None:
    value = home[key]
    how = random.randrange(12)
    if how <= 3:
        home[key] = random.choice(_ODD)
    elif how == 4:
        del home[key]
    elif how == 5 and isinstance(home, dict):
        home[random.choice(("extra", "kind", "layers", "model", "format", "self", "__class__"))] = value
    elif how == 6 and isinstance(home, list):
        home.insert(key, value)
    elif how == 7 and isinstance(value, list):
        home[key] = (
            value[: random.randrange(len(value) + 1)] if random.random() < 0.5 else value * random.randrange(2, 60)
        )
    elif how == 8 and isinstance(value, int | float) and not isinstance(value, bool):
        # To the power of two things: what follows on it has more to do, or overflows.
        home[key] = random.choice((value + 1, value - 1, -value, value * 1000, value + 0.5, str(value)))
    elif how == 9:
        home[key] = deep(random.choice((5, 70, 250)), random.random() < 0.5)
    elif how == 10 and isinstance(home, dict):
        other = random.choice([name for _, name in known if isinstance(name, str)] or ["a"])
        home[other] = home.pop(key)
    else:
        there, place = random.choice(known)
        if isinstance(there, list) and not isinstance(place, int):
            return
        home[key] = (
            json.loads(json.dumps(there[place]))
            if place in there or (isinstance(there, list) and place < len(there))
            else None
        )


def mutate(random: Random, path: Path) -> Path:
    """Change a file by what it is, and give it back: most changes leave its form, and so get past the first check."""
    if random.random() < 0.1:
        swap(random, path)
    elif path.suffix == ".json" and random.random() < 0.85:
        path.write_text(json.dumps(change_json(random, json.loads(path.read_text()))))
    elif path.suffix == ".jsonl" and random.random() < 0.85:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        place = random.randrange(len(lines))
        lines[place] = change_json(random, lines[place])
        if random.random() < 0.2:
            random.shuffle(lines)
        path.write_text("\n".join(map(json.dumps, lines)) + random.choice(("\n", "", '\n{"step":')))
    elif path.suffix == ".safetensors" and random.random() < 0.85:
        change_safetensors(random, path)
    elif path.suffix == ".png" and random.random() < 0.5:
        change_sides(random, path)
    elif path.suffix == ".gguf" and random.random() < 0.7:
        change_numbers(random, path)
    else:
        change_bytes(random, path)
    return path


def swap(random: Random, path: Path) -> None:
    """Something else in the place of a file."""
    path.unlink()
    choices: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to("/proc/self/mem"),
        lambda: path.symlink_to(path.name),
        path.mkdir,
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(random.randbytes(300)),
        lambda: path.write_text("[" * _DEEP),
        lambda: path.write_text('{"a":' * _DEEP),
        lambda: path.write_text("1" * 10_000),
        lambda: path.write_text("null"),
        lambda: path.write_text("[" + "[]," * 4_000_000 + "0]"),
        lambda: path.write_text("\ufeff{}"),
        lambda: _sparse(path),
    )
    random.choice(choices)()


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


def change_safetensors(random: Random, path: Path) -> None:
    """Its header, or how long that is said to be; the numbers of its tensors now and then."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, body = content[8 : 8 + length], content[8 + length :]
    how = random.randrange(10)
    if how < 5:
        plain = json.loads(header)
        for name in [name for name, text in plain.get("__metadata__", {}).items() if text[:1] == "{"]:
            if random.random() < 0.7:
                plain["__metadata__"][name] = json.dumps(change_json(random, json.loads(plain["__metadata__"][name])))
                break
        else:
            plain = change_json(random, plain)
        header = json.dumps(plain).encode("utf-8")
        length = len(header)
    elif how == 5:
        length = random.choice((0, 1, length + 1, length - 1, 2**40, 2**64 - 1, len(content)))
    elif how == 6:
        body = body[: random.randrange(len(body) + 1)]
    else:
        body = bytearray(body)
        for _ in range(random.choice((1, 8, len(body) // 4))):
            body[random.randrange(len(body))] = random.choice((0, 0x7F, 0x80, 0xFF))
    path.write_bytes(length.to_bytes(8, "little") + header + bytes(body))


def change_sides(random: Random, path: Path) -> None:
    """Width and height of a PNG image, with the checksum that belongs to them."""
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", *(random.choice((0, 1, 9, 4_000, 13_000, 50_000, 2**31)) for _ in range(2)))
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)


def change_numbers(random: Random, path: Path) -> None:
    """A number in the first part of a binary file."""
    content = bytearray(path.read_bytes())
    at = random.randrange(4, min(len(content), 3_000) - 8)
    form, number = random.choice(
        (("<I", 2**31), ("<I", 10**9), ("<I", 9), ("<I", 8), ("<Q", 2**63), ("<Q", 10**9), ("<Q", 0))
    )
    content[at : at + struct.calcsize(form)] = struct.pack(form, number)
    path.write_bytes(content)


def change_bytes(random: Random, path: Path) -> None:
    """Bits flipped, bytes cut off, put in, or overwritten."""
    content = bytearray(path.read_bytes())
    if not content:
        return
    how = random.randrange(4)
    if how == 0:
        content = content[: random.randrange(len(content))]
    elif how == 1:
        at = random.randrange(len(content))
        content[at:at] = random.choice((b"\x00", b"[", b"}", b"\xff" * 8, b'"', random.randbytes(9)))
    else:
        for _ in range(random.choice((1, 1, 2, 8))):
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)
