"""Text to ids and back: bytes as they are, or byte pairs (Sennrich et al. 2016, arXiv 1508.07909) over bytes.

Both are kept as a ``tokenizer.json`` that the `tokenizers` library reads, and with it transformers.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy

from unsmooth.errors import expected
from unsmooth.files import parse_json, read_text, write_whole

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = range(len(SPECIAL))
SMALLEST_BPE = len(SPECIAL) + 256


class Tokenizer(ABC):
    """Text to ids and back.

    Args:
        vocabulary: Ids are below this number.
        special: Whether the first ids are those of `SPECIAL`, which no text has.
    """

    vocabulary: int
    special: bool

    @abstractmethod
    def encode(self, text: bytes) -> numpy.ndarray:
        """Ids of a text in UTF-8."""

    def encode_many(self, texts: Sequence[bytes]) -> list[numpy.ndarray]:
        """Ids of each text."""
        return [self.encode(text) for text in texts]

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text again, without special ids."""

    @abstractmethod
    def to_json(self) -> str:
        """The content of ``tokenizer.json``."""

    def save(self, folder: Path) -> None:
        """Write what `load_tokenizer` and transformers read."""
        write_whole(folder / "tokenizer.json", self.to_json())
        roles = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **(roles if self.special else {})}
        write_whole(folder / "tokenizer_config.json", json.dumps(settings, indent=1))


class ByteTokenizer(Tokenizer):
    """A byte is a token; with special ids, byte b is id b + 5.

    >>> ByteTokenizer().encode("né".encode()).tolist(), ByteTokenizer().vocabulary
    ([110, 195, 169], 256)
    >>> ByteTokenizer(special=True).encode(b"n").tolist(), ByteTokenizer(special=True).decode([CLS, 115, SEP])
    ([115], 'n')
    """

    def __init__(self, special: bool = False) -> None:
        self.special = special
        self.first = len(SPECIAL) if special else 0
        self.vocabulary = 256 + self.first

    def encode(self, text: bytes) -> numpy.ndarray:
        """See `Tokenizer`."""
        content = numpy.frombuffer(text, dtype=numpy.uint8)
        return content.astype(numpy.uint16) + self.first if self.special else content

    def decode(self, ids: Iterable[int]) -> str:
        """See `Tokenizer`."""
        return bytes(each - self.first for each in map(int, ids) if each >= self.first).decode("utf-8", "replace")

    def to_json(self) -> str:
        """A BPE without merges."""
        vocabulary = {name: place for place, name in enumerate(SPECIAL)} if self.special else {}
        vocabulary |= {sign: byte + self.first for byte, sign in enumerate(_byte_signs())}
        added = [
            {"id": place, "content": name, "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": True}
            for place, name in enumerate(SPECIAL if self.special else ())
        ]
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        parts: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
        parts |= {"normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level}
        parts["model"] = {"type": "BPE", "vocab": vocabulary, "merges": []}
        return json.dumps(parts, ensure_ascii=False)


class BpeTokenizer(Tokenizer):
    """Byte pairs, through the `tokenizers` library; the special ids are always there.

    Args:
        inner: A `tokenizers.Tokenizer`.
    """

    special = True

    def __init__(self, inner: Any) -> None:
        # A text that spells "[MASK]" is a text: only what a task puts in is special.
        inner.encode_special_tokens = True
        self.inner = inner
        self.vocabulary = inner.get_vocab_size()

    def encode(self, text: bytes) -> numpy.ndarray:
        """See `Tokenizer`."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[bytes]) -> list[numpy.ndarray]:
        """See `Tokenizer`; the library shares them out over the cores."""
        decoded = [text.decode("utf-8", "replace") for text in texts]
        found = self.inner.encode_batch_fast(decoded, add_special_tokens=False)
        return [numpy.array(each.ids, dtype=numpy.int32) for each in found]

    def decode(self, ids: Iterable[int]) -> str:
        """See `Tokenizer`."""
        return str(self.inner.decode([int(each) for each in ids if each >= len(SPECIAL)]))

    def to_json(self) -> str:
        """See `Tokenizer`."""
        return str(self.inner.to_str())

    # What the library holds cannot be copied to another process; its JSON can.
    def __getstate__(self) -> str:
        return self.to_json()

    def __setstate__(self, state: str) -> None:
        self.__init__(_library().Tokenizer.from_str(state))  # type: ignore[misc]


def train_bpe(texts: Iterable[str], vocabulary: int) -> BpeTokenizer:
    """Learn byte pairs from texts; fewer than asked for where the texts do not have so many."""
    if vocabulary < SMALLEST_BPE:
        raise expected(
            f"a vocabulary of at least {SMALLEST_BPE}: bytes and special ids", vocabulary, "--set vocabulary=8192"
        )
    library = _library()
    inner = library.Tokenizer(library.models.BPE(unk_token="[UNK]"))
    inner.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer=trainer)
    return BpeTokenizer(inner)


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """What `Tokenizer.save` wrote."""
    path = Path(folder) / "tokenizer.json"
    try:
        text = read_text(path)
        model = parse_json(text, "it")["model"]
        names, merges = model["vocab"], model["merges"]
        if not merges and len(names) <= SMALLEST_BPE:
            return ByteTokenizer(special=SPECIAL[0] in names)
    except OSError:
        raise expected(f"a tokenizer in {folder}", "no tokenizer.json", "the folder of a trained model") from None
    except (ValueError, KeyError, TypeError) as error:
        hint = "the folder of a trained model"
        raise expected(f"a tokenizer in {path}", f"a broken file ({type(error).__name__})", hint) from None
    library = _library()
    try:
        return BpeTokenizer(library.Tokenizer.from_str(text))
    except Exception as error:  # the library's own, which has no class of its own
        raise expected(
            f"a tokenizer in {path}", str(error).splitlines()[0][:200], "the folder of a trained model"
        ) from None


def encode_segments(tokenizer: Tokenizer, segments: Sequence[str], length: int) -> list[int]:
    """[CLS] first [SEP] second [SEP] …, in at most `length` ids; the longest segment is cut until it fits.

    >>> encode_segments(ByteTokenizer(special=True), ["ab", "c"], 16)
    [2, 102, 103, 3, 104, 3]
    >>> encode_segments(ByteTokenizer(special=True), ["abcdef", "c"], 6)
    [2, 102, 103, 3, 104, 3]
    """
    room = length - 1 - len(segments)
    if room < len(segments) or not tokenizer.special:
        got = f"{length}" if tokenizer.special else "a tokenizer without special ids"
        hint = "special=True, or --set length=128"
        raise expected(f"special ids and a length of at least {2 * len(segments) + 1}", got, hint)
    parts = [tokenizer.encode(segment.encode("utf-8")).tolist() for segment in segments]
    kept = [len(part) for part in parts]
    while sum(kept) > room:
        longest = max(range(len(kept)), key=kept.__getitem__)
        others = [count for place, count in enumerate(kept) if place != longest]
        # Down to the next longest in one go, or as far as needed.
        kept[longest] = max(room - sum(others), max(others, default=0) - 1, 1)
    return [CLS, *(each for part, count in zip(parts, kept, strict=True) for each in [*part[:count], SEP])]


def _byte_signs() -> list[str]:
    """A printable sign for each byte, as byte-level tokenizers write them: itself, or else the next from 256 on."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise expected("the tokenizers library for BPE", "none", 'pip install "unsmooth[train]"') from None
    return tokenizers
