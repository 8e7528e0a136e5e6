"""The data of a grid: images or characters, the same for every member, and their digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.errors import expected
from unsmooth.evidence.grid.registration import Data, Training
from unsmooth.files import read_text
from unsmooth.training.data.images import Images, read_cifar
from unsmooth.training.ensemble import Batches
from unsmooth.weights import check_pickle

_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
# The shuffle is part of what is registered.
_SEED = 0


@dataclass(frozen=True)
class Pictures:
    """Images and labels of both splits: uint8 (count, 3, side, side) and int64 (count,)."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int

    @property
    def digest(self) -> str:
        """Of pixels and labels, in order."""
        whole = hashlib.sha256()
        for name in _ARRAYS:
            whole.update(getattr(self, name).numpy().tobytes())
        return whole.hexdigest()[:16]

    def normalised(self, split: str, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        """Images of mean 0 and deviation 1 in each channel of the training images."""
        level = torch.arange(256, dtype=torch.float64)
        shares = [torch.bincount(one.flatten(), minlength=256) / one.numel() for one in self.train_images.unbind(1)]
        mean = torch.stack([(share * level).sum() for share in shares]).view(3, 1, 1)
        deviation = torch.stack(
            [(share * (level - at) ** 2).sum().sqrt() for share, at in zip(shares, mean, strict=True)]
        )
        chosen: Tensor = getattr(self, f"{split}_images").to(device).to(dtype)
        return (chosen - mean.to(chosen)) / deviation.view(3, 1, 1).to(chosen)

    @property
    def side(self) -> int:
        """Of an image."""
        return self.train_images.shape[-1]

    def probe(self, count: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Test images that are looked at, in double precision, and their labels."""
        return self.normalised("test", device, torch.float64)[:count], self.test_labels[:count].to(device)

    def batches(self, seeds: Sequence[int], steps: int, training: Training, device: torch.device | str) -> Batches:
        """Batches of members, each in the order of its seed, and mirrored and moved as its seed says."""
        images, labels = self.normalised("train", device, torch.float32), self.train_labels.to(device)
        orders = {seed: _order(seed, len(labels), steps * training.batch) for seed in seeds}
        rows = torch.stack([orders[seed] for seed in seeds], dim=1)
        order_SMB = torch.unflatten(rows, 0, (-1, training.batch)).transpose(1, 2).contiguous().to(device)
        if shift := training.shift:
            images = F.pad(images, [shift] * 4)
            moves = {seed: _moves(seed, (steps, training.batch), shift) for seed in seeds}
            moves_SMB3 = torch.stack([moves[seed] for seed in seeds], dim=1).to(device)
        along, channels = (torch.arange(size, device=device) for size in (self.side, 3))

        def chosen(at: Tensor) -> tuple[Tensor, Tensor]:
            chosen_MB = order_SMB.index_select(0, at)[0]
            picked = images.index_select(0, chosen_MB.flatten())
            if shift:
                down, right, mirrored = moves_SMB3.index_select(0, at)[0].flatten(0, 1).long().T[..., None]
                rows_KN = along + down
                columns_KN = right + torch.where(mirrored > 0, self.side - 1 - along, along)
                each = torch.arange(len(picked), device=device)[:, None, None, None]
                picked = picked[each, channels[:, None, None], rows_KN[:, None, :, None], columns_KN[:, None, None]]
            wanted = labels.index_select(0, chosen_MB.flatten())
            return torch.unflatten(picked, 0, chosen_MB.shape), wanted.view(chosen_MB.shape)

        return chosen

    def tests(self, at_a_time: int, device: torch.device | str) -> Iterator[tuple[Tensor, Tensor]]:
        """All test images with their labels, some at a time."""
        inputs, labels = self.normalised("test", device, torch.float32), self.test_labels.to(device)
        yield from zip(torch.split(inputs, at_a_time), torch.split(labels, at_a_time), strict=True)

    def write(self, path: Path) -> Path:
        """As one file, for machines that have no data folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        numpy.savez(path, classes=self.classes, **{name: getattr(self, name).numpy() for name in _ARRAYS})
        return path


def _moves(seed: int, shape: tuple[int, int], shift: int) -> Tensor:
    """How far down and right each image of each step is taken, 0 to 2·shift, and whether it is mirrored."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.randint(2 * shift + 1, (*shape, 2), generator=generator, dtype=torch.int8)
    return torch.cat([places, torch.randint(2, (*shape, 1), generator=generator, dtype=torch.int8)], dim=-1)


def _order(seed: int, images: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    epochs = -(-count // images)
    return torch.cat([torch.randperm(images, generator=generator) for _ in range(epochs)])[:count]


@cache
def pictures(source: Path, data: Data) -> Pictures:
    """The images that a registration asks for.

    Args:
        source: A folder with CIFAR's binary files, or a file that `Pictures.write` wrote.
        data: Which images.
    """
    if source.suffix == ".npz":
        try:
            check_pickle(source)  # the same form: parts in an archive that packs nothing
            with numpy.load(source) as found:
                images, labels, test, wanted = (torch.from_numpy(found[name]) for name in _ARRAYS)
                made = Pictures(images, labels, test, wanted, int(found["classes"]))
        except Exception as error:  # a broken archive may raise anything
            got = "none" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())[:200]
            raise expected(f"a file of images at {source}", got, "--data data/cifar100") from None
    else:
        made = _chosen(read_cifar(source, int(data.name.removeprefix("cifar"))), data)
    if made.digest != data.digest:
        hint = "the source that was registered: `unsmooth data get cifar100`"
        raise expected(f"the registered images (digest {data.digest})", f"others ({made.digest}) in {source}", hint)
    return made


def _chosen(images: Images, data: Data) -> Pictures:
    """So many images of each split, evenly over the classes; no order of the source shows in which, or in theirs."""
    generator = torch.Generator().manual_seed(_SEED)
    found: list[Tensor] = []
    for split, count in (("train", data.train), ("test", data.test)):
        pixels, labels = getattr(images, f"{split}_images"), getattr(images, f"{split}_labels")
        rows = [bytes([label]) + one.tobytes() for one, label in zip(pixels.numpy(), labels.tolist(), strict=True)]
        order = torch.tensor(sorted(range(len(rows)), key=rows.__getitem__))
        order = order[torch.randperm(len(order), generator=generator)]
        each = count // images.classes
        taken = torch.cat([order[labels[order] == label][:each] for label in range(images.classes)])
        taken = taken[torch.randperm(len(taken), generator=generator)]
        found += [pixels[taken], labels[taken]]
    return Pictures(found[0], found[1], found[2], found[3], images.classes)


# So many windows of the test part are read: evenly spread.
_TESTS = 400


@dataclass(frozen=True)
class Characters:
    """Places of characters in the sorted alphabet, int64: those trained on and, after them, those tested on."""

    train: Tensor
    test: Tensor
    classes: int
    length: int
    side: int = 0

    def probe(self, count: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Windows of the test part that are looked at, and the characters that follow."""
        return self._windows(torch.linspace(0, len(self.test) - self.length - 1, count).long(), self.test, device)

    def batches(self, seeds: Sequence[int], steps: int, training: Training, device: torch.device | str) -> Batches:
        """Windows at random places, for each member those of its seed."""
        last = len(self.train) - self.length
        drawn = {
            seed: torch.randint(last, (steps, training.batch), generator=torch.Generator().manual_seed(seed))
            for seed in seeds
        }
        at_SMB = torch.stack([drawn[seed] for seed in seeds], dim=1).to(device)
        text, along = self.train.to(device), torch.arange(self.length + 1, device=device)

        def chosen(at: Tensor) -> tuple[Tensor, Tensor]:
            windows = text[at_SMB.index_select(0, at)[0][..., None] + along]
            return windows[..., :-1], windows[..., 1:]

        return chosen

    def tests(self, at_a_time: int, device: torch.device | str) -> Iterator[tuple[Tensor, Tensor]]:
        """Windows spread over the test part, some at a time."""
        for some in torch.split(torch.linspace(0, len(self.test) - self.length - 1, _TESTS).long(), at_a_time):
            yield self._windows(some, self.test, device)

    def _windows(self, starts: Tensor, text: Tensor, device: torch.device | str) -> tuple[Tensor, Tensor]:
        windows = text[starts[:, None] + torch.arange(self.length + 1)].to(device)
        return windows[:, :-1], windows[:, 1:]


@cache
def characters(source: Path, data: Data) -> Characters:
    """The text that a registration asks for.

    Args:
        source: A folder with a file of the registered name and ".txt", or that file.
        data: Which text, and how much of it.
    """
    path = source if source.suffix == ".txt" else source / f"{data.name}.txt"
    if not path.is_file():
        raise expected(f"the text {data.name} at {path}", "none", "--data and the folder that it is in")
    text = read_text(path)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if digest != data.digest:
        raise expected(f"the registered text (digest {data.digest})", f"another one ({digest}) in {path}", data.name)
    alphabet = {letter: place for place, letter in enumerate(sorted(set(text)))}
    places = torch.tensor([alphabet[letter] for letter in text])
    if len(alphabet) != data.classes or len(places) < data.train + data.test:
        got = f"{len(places):,} of {len(alphabet)} kinds"
        raise expected(f"{data.train + data.test:,} characters of {data.classes} kinds in {path}", got, data.name)
    assert data.length is not None, "it is a text"
    train, test = places[: data.train], places[data.train : data.train + data.test]
    return Characters(train, test, len(alphabet), data.length)
