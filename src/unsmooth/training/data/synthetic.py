"""Made-up data that can be learned, for trying a recipe before any data is there. It is marked as synthetic."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import numpy
import torch
from torch import Tensor

from unsmooth import keyed
from unsmooth.errors import expected
from unsmooth.training.data.images import Images
from unsmooth.training.data.text import Text, dtype_for, held
from unsmooth.training.data.tokenizing import ByteTokenizer, train_bpe

_NOISE = 40.0
_BLOCK = 2048
# The made-up language: words of a few syllables, each followed by one of a few others; a topic lasts a paragraph.
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_WORDS, _TOPICS, _FOLLOWERS = 600, 12, 6


def synthetic_images(
    classes: int = 100, train: int = 10_000, test: int = 2_000, size: int = 32, seed: int = 0
) -> Images:
    """Images of gratings: a class has a colour, a direction and a wavelength; an image has a phase, a tint and noise.

    Args:
        classes: How many kinds.
        train: How many images to learn from.
        test: How many others to test on; both are spread evenly over the classes.
        size: Height and width in pixels.
        seed: Other seeds give other classes and other images.

    >>> images = synthetic_images(classes=4, train=8, test=4, size=8)
    >>> images.train_images.shape, images.test_labels.tolist(), images.synthetic
    (torch.Size([8, 3, 8, 8]), [0, 1, 2, 3], True)
    """
    if min(classes, train, test, size) < 1:
        raise expected("at least one class, image and pixel", (classes, train, test, size), "classes=10, train=1000")
    train_labels, test_labels = torch.arange(train) % classes, torch.arange(test) % classes
    return Images(
        train_images=_gratings(train_labels, size, seed, "train"),
        train_labels=train_labels,
        test_images=_gratings(test_labels, size, seed, "test"),
        test_labels=test_labels,
        classes=classes,
        name="synthetic",
        digest=f"synthetic-images-{classes}-{train}-{test}-{size}-{seed}",
        synthetic=True,
    )


def synthetic_text(
    tokens: int = 1_000_000,
    seed: int = 0,
    *,
    tokenizer: Literal["bytes", "bpe"] = "bytes",
    vocabulary: int = 32_768,
    special: bool = False,
) -> Text:
    """A text in a made-up language, as tokens: 90 % to learn from, 5 % to choose by, 5 % to report on.

    Args:
        tokens: How many at most.
        seed: Other seeds give other languages.
        tokenizer: "bytes" or "bpe".
        vocabulary: Tokens of the BPE, at most.
        special: Reserve ids 0 to 4 with bytes too.

    >>> text = synthetic_text(1000)
    >>> len(text.train), len(text.valid), text.vocabulary, text.synthetic
    (900, 50, 256, True)
    """
    # A token of the BPE is a word at most, with its space.
    words = synthetic_words(tokens * (1 if tokenizer == "bytes" else 5), seed).encode()
    chosen = ByteTokenizer(special) if tokenizer == "bytes" else train_bpe(words.decode().split("\n"), vocabulary)
    ids = chosen.encode(words)[:tokens].astype(dtype_for(chosen.vocabulary))
    cuts = [0, len(ids) * 90 // 100, len(ids) * 95 // 100, len(ids)]
    parts = [ids[start:stop] for start, stop in pairwise(cuts)]
    train, valid, test = map(held, parts)
    digest = f"synthetic-text-{tokens}-{seed}"
    return Text(train, valid, chosen.vocabulary, chosen, digest, "synthetic", synthetic=True, test=test)


def synthetic_words(characters: int, seed: int = 0) -> str:
    """So many characters of a made-up language: a Markov chain over words within the topic of a paragraph.

    >>> synthetic_words(60)
    'le. no peze na sago do gugu pu kepe muvo de pizeso gasu gona'
    """
    base = keyed.stream(seed, "synthetic text")
    words = _lexicon(base)
    # Rank k is drawn with weight 1 / k, as words are in languages.
    shares = (1 / numpy.arange(1, _FOLLOWERS + 1)).cumsum()
    # Words have two letters at least and a space, so there are enough of them.
    draws = keyed.uniform(keyed.keys(base, 1, torch.arange(characters // 3 + 1)[:, None], torch.arange(3))).numpy()
    ranks = numpy.searchsorted(shares / shares[-1], draws[:, 0], side="right").tolist()
    places = torch.arange(_TOPICS)[:, None, None], torch.arange(_WORDS)[:, None], torch.arange(_FOLLOWERS)
    followers = keyed.integers(keyed.keys(base, 2, *places), _WORDS).tolist()
    parts, size, topic, word = [], 0, 0, 0
    for rank, (_, ending, paragraph) in zip(ranks, draws.tolist(), strict=True):
        word = followers[topic][word][rank]
        sign = " " if ending > 0.1 else ". " if paragraph > 0.2 else ".\n"
        if sign == ".\n":
            topic = int(ending * 10 * _TOPICS)
        parts.append(words[word] + sign)
        size += len(parts[-1])
        if size >= characters:
            break
    return "".join(parts)[:characters]


def _lexicon(base: int) -> list[str]:
    keys_WK = keyed.keys(base, 0, torch.arange(_WORDS)[:, None], torch.arange(4))
    lengths = (1 + keyed.integers(keys_WK[:, 3], 3)).tolist()
    chosen = keyed.integers(keys_WK[:, :3], len(_SYLLABLES)).tolist()
    return ["".join(_SYLLABLES[each] for each in row[:length]) for row, length in zip(chosen, lengths, strict=True)]


def _gratings(labels: Tensor, size: int, seed: int, split: str) -> Tensor:
    """(count, 3, size, size) uint8, in blocks: the noise of all images at once would not fit into memory."""
    images = torch.empty(len(labels), 3, size, size, dtype=torch.uint8)
    base = keyed.stream(seed, f"synthetic {split}")
    for start in range(0, len(labels), _BLOCK):
        stop = min(start + _BLOCK, len(labels))
        keys_B = keyed.keys(base, torch.arange(start, stop))
        images[start:stop] = _grating(labels[start:stop], keys_B, size, keyed.stream(seed, "synthetic classes"))
    return images


def _grating(labels_B: Tensor, keys_B: Tensor, size: int, classes: int) -> Tensor:
    of_class_BK = keyed.uniform(keyed.derive(keyed.keys(classes, labels_B), 8))
    of_image_BK = keyed.uniform(keyed.derive(keys_B, 4))
    angle, waves = math.pi * of_class_BK[:, 0], 1.5 + 4.5 * of_class_BK[:, 1]
    place = torch.linspace(0, 1, size)
    along_BHW = (
        angle.cos()[:, None, None] * place[None, None, :] + angle.sin()[:, None, None] * place[None, :, None]
    ) * waves[:, None, None]
    wave_BHW = torch.sin(2 * math.pi * (along_BHW + of_image_BK[:, 0, None, None]))
    # Two colours of the class, between which the grating swings; the tint shifts both.
    low_BC, high_BC = 40 + 175 * of_class_BK[:, 2:5], 40 + 175 * of_class_BK[:, 5:8]
    mix_BCHW = (0.5 + 0.5 * wave_BHW)[:, None]
    clean_BCHW = low_BC[..., None, None] * (1 - mix_BCHW) + high_BC[..., None, None] * mix_BCHW
    tint_BC = 30 * (of_image_BK[:, 1:] - 0.5)
    noise_keys = keyed.derive(keyed.keys(keys_B, 1), 3 * size * size)
    noise_BCHW = _NOISE * (2 * keyed.uniform(noise_keys) - 1).reshape(clean_BCHW.shape)
    return (clean_BCHW + tint_BC[..., None, None] + noise_BCHW).clamp(0, 255).to(torch.uint8)
