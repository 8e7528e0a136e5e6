"""From what users have (texts, images, tensors, loaders, files) to batches a model can be called with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from unsmooth.errors import expected

RawBatch: TypeAlias = Tensor | Mapping[str, Any]

TEXT_SUFFIXES = (".txt", ".md", ".jsonl")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
# What transformers calls the inputs of its models.
KINDS = {"input_ids": "texts", "pixel_values": "images", "input_features": "sounds", "input_values": "sounds"}
# A page of text per sequence: long enough for a stable mean, short enough for any model's positions.
DEFAULT_MAX_LENGTH = 512


@dataclass(frozen=True)
class Source:
    """Batches that can be walked through, with what the manifest says about them.

    Args:
        kind: "texts", "images", "tensor", "dict" or "loader".
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
    """How texts and images become tensors; `model_takes` names the model's inputs, where that is known."""

    tokenizer: Any | None
    image_processor: Any | None
    batch_size: int
    max_length: int | None
    model_limit: int | None
    model_takes: frozenset[str] = frozenset()

    def check_taken(self, field: str, kind: str) -> None:
        """Refuse data of a kind that the model has no input for."""
        if self.model_takes and field not in self.model_takes:
            own = next((words for name, words in KINDS.items() if name in self.model_takes), "other things")
            raise expected(f"{own}, which this model reads", kind, f"{own} as data")

    @property
    def length(self) -> int:
        """Tokens after which a text is cut."""
        limits = [self.max_length or DEFAULT_MAX_LENGTH, self.model_limit]
        if self.max_length is None:
            # Tokenizers without a limit say 1e30.
            limits.append(getattr(self.tokenizer, "model_max_length", None))
        return int(min(limit for limit in limits if limit))


def open_data(data: Any, how: Preprocessing) -> Source:
    """Recognise what `data` is and prepare it for reading."""
    if isinstance(data, Path) or (isinstance(data, str) and _names_a_path(data)):
        return _open_path(Path(data), how)
    if isinstance(data, str):
        data = [data]
    if isinstance(data, Tensor):
        return _sliced("tensor", data.shape[0], lambda start, stop: data[start:stop], how)
    if isinstance(data, Mapping):
        return _open_dict(data, how)
    if isinstance(data, DataLoader):
        return _open_loader(data)
    if isinstance(data, Sequence) and data and all(isinstance(item, str) for item in data):
        return _open_texts(list(data), how, {})
    if isinstance(data, Sequence) and data and all(_is_image(item) for item in data):
        return _open_images(list(data), how, {})
    if isinstance(data, Iterable):
        return _open_iterable(data)
    raise expected(
        "texts, images, a tensor, a dict of tensors, a DataLoader, a folder or a text file",
        type(data).__name__,
        'scan(model, ["a text", "another"])',
    )


def _names_a_path(text: str) -> bool:
    if "\n" in text or len(text) > 1024:
        return False
    # A text has spaces; a mistyped path must not be scanned as a one-word text.
    return Path(text).exists() or not any(character.isspace() for character in text)


def _open_path(path: Path, how: Preprocessing) -> Source:
    if not path.exists():
        raise expected("an existing text file or folder", repr(str(path)), "the path of a .txt file or of a folder")
    if path.is_file():
        if path.suffix.lower() in IMAGE_SUFFIXES:
            return _open_images([path], how, {"path": path.name})
        return _open_texts(read_texts(path), how, {"path": path.name})
    files = sorted(item for item in path.rglob("*") if item.is_file() and not item.name.startswith("."))
    images = [item for item in files if item.suffix.lower() in IMAGE_SUFFIXES]
    texts = [item for item in files if item.suffix.lower() in TEXT_SUFFIXES]
    if images and (how.image_processor is not None or not texts):
        return _open_images(images, how, {"path": path.name, "files": len(images)})
    if texts:
        return _open_texts([text for item in texts for text in read_texts(item)], how, {"path": path.name})
    raise expected(
        f"text ({' '.join(TEXT_SUFFIXES)}) or image files in {path.name}/",
        f"{len(files)} files of other kinds" if files else "an empty folder",
        "a folder that holds some",
    )


def read_texts(path: Path) -> list[str]:
    """Texts of one file: the "text" of each line of .jsonl, else paragraphs, else lines where no line is blank."""
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        got = "one that is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        hint = f"its text in a file of its own ({', '.join(TEXT_SUFFIXES)})"
        raise expected(f"a readable text file at {path.name}", got, hint) from None
    if path.suffix.lower() == ".jsonl":
        return [_jsonl_text(path, number, line) for number, line in enumerate(content.splitlines(), 1) if line.strip()]
    lines = [line.strip() for line in content.splitlines()]
    paragraphs = [" ".join(block.split("\n")) for block in "\n".join(lines).split("\n\n")]
    blocks = paragraphs if len(paragraphs) > 1 else lines
    return [block.strip() for block in blocks if block.strip()]


def _jsonl_text(path: Path, number: int, line: str) -> str:
    try:
        return str(json.loads(line)["text"])
    except (json.JSONDecodeError, KeyError, TypeError):
        raise expected(f'{{"text": …}} on line {number} of {path.name}', repr(line[:40]), "one object a line") from None


def _open_texts(texts: list[str], how: Preprocessing, details: Mapping[str, Any]) -> Source:
    if not texts:
        raise expected("at least one text", "none", "a file that is not empty")
    how.check_taken("input_ids", "texts")
    tokenizer = how.tokenizer
    if tokenizer is None:
        raise expected("a tokenizer for texts", "none", "scan(model, texts, tokenizer=…) or token ids as data")
    if getattr(tokenizer, "pad_token", None) is None and getattr(tokenizer, "eos_token", None) is not None:
        tokenizer.pad_token = tokenizer.eos_token

    def encode(start: int, stop: int) -> Mapping[str, Tensor]:
        some = texts[start:stop]
        encoded = tokenizer(some, padding=True, truncation=True, max_length=how.length, return_tensors="pt")
        source.cuts[start // how.batch_size] = _cut(tokenizer, some, encoded, how.length)
        return dict(encoded)

    source = _sliced("texts", len(texts), encode, how, {**details, "texts": len(texts), "max_length": how.length})
    return source


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


def _open_images(images: list[Any], how: Preprocessing, details: Mapping[str, Any]) -> Source:
    how.check_taken("pixel_values", "images")
    processor = how.image_processor
    if processor is None:
        raise expected("an image processor for images", "none", "scan(model, images, image_processor=…) or a tensor")

    def encode(start: int, stop: int) -> Mapping[str, Tensor]:
        opened = [_open_image(image) for image in images[start:stop]]
        return dict(processor(images=opened, return_tensors="pt"))

    return _sliced("images", len(images), encode, how, {**details, "images": len(images)})


def _is_image(item: Any) -> bool:
    return isinstance(item, Path) or type(item).__module__.startswith("PIL.")


def _open_image(item: Any) -> Any:
    if not isinstance(item, Path):
        return item.convert("RGB")
    from PIL import Image

    try:
        with Image.open(item) as opened:
            return opened.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise expected(
            f"a readable image at {item.name}", f"a broken one ({error})", "removing or replacing that file"
        ) from None


def _open_dict(data: Mapping[str, Any], how: Preprocessing) -> Source:
    sizes = {key: value.shape[0] for key, value in data.items() if isinstance(value, Tensor) and value.ndim}
    if not sizes or len(set(sizes.values())) != 1:
        raise expected("a dict of tensors with one batch size", sizes or "no tensors", "equal first dimensions")

    def cut(start: int, stop: int) -> Mapping[str, Any]:
        return {key: value[start:stop] if key in sizes else value for key, value in data.items()}

    return _sliced("dict", next(iter(sizes.values())), cut, how)


def _open_loader(loader: DataLoader[Any]) -> Source:
    iterable = isinstance(loader.dataset, IterableDataset)
    sharded = iterable or isinstance(loader.sampler, DistributedSampler)
    return Source(
        kind="loader",
        read=lambda: map(first_of_pair, loader),
        batches=None if iterable else len(loader),
        details={"batch_size": loader.batch_size},
        sharded=sharded,
    )


def _open_iterable(data: Iterable[Any]) -> Source:
    return Source(
        kind="loader",
        read=lambda: map(first_of_pair, data),
        batches=len(data) if isinstance(data, Sequence) else None,
        details={},
        replayable=not isinstance(data, Iterator),
    )


def first_of_pair(batch: Any) -> RawBatch:
    """Data sets yield (input, label): the input is what the model reads."""
    if isinstance(batch, list | tuple) and batch:
        batch = batch[0]
    if isinstance(batch, Tensor | Mapping):
        return batch
    raise expected(
        "batches that are tensors, dicts of tensors or (tensor, label) pairs",
        type(batch).__name__,
        "a collate_fn",
    )


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
            yield cut(start, min(start + step, size))

    return Source(kind, read, -(-size // step), {**(details or {}), "batch_size": step})


def to_device(batch: RawBatch, device: torch.device) -> RawBatch:
    """Move every tensor of a batch."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    return {
        key: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value for key, value in batch.items()
    }
