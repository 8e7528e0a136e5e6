"""Every preset once more, in float64 numpy, from what its source describes and in the order in which that does it.

A preset joins the tests by one entry in `REFERENCES`. A reference gets what a model handed on, layer by layer and
text by text or image by image, padding already cut off, and returns a number for each layer. It knows nothing of
unsmooth.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Stream:
    """What a model does to some inputs.

    Args:
        outputs: By layer, what enters the first block and what each hands on; each a list of (tokens, features).
        mids: By block, the stream between attention and MLP.
        ids: The token ids of each text; none for images.
        special: Ids of special tokens.
    """

    outputs: Sequence[Sequence[Matrix]]
    mids: Sequence[Sequence[Matrix]]
    ids: Sequence[Sequence[int]] = ()
    special: frozenset[int] = frozenset()

    def words(self, layer: Sequence[Matrix]) -> list[tuple[list[int], Matrix]]:
        """Ids and vectors of each text without special tokens."""
        kept = [[place for place, word in enumerate(text) if word not in self.special] for text in self.ids]
        return [
            ([text[place] for place in places], x[places])
            for text, x, places in zip(self.ids, layer, kept, strict=True)
        ]


def cosine(a: Matrix, b: Matrix) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def vita(stream: Stream) -> list[float]:
    def one(x: Matrix) -> float:
        tokens_last = x.T
        s = tokens_last.T @ tokens_last
        length = np.sqrt((tokens_last**2).sum(axis=-2))
        return float(np.abs(s / (length[:, None] * length[None, :])).mean())

    return [float(np.mean([one(x) for x in layer])) for layer in stream.outputs]


def evo_vit(stream: Stream) -> list[float]:
    def one(x: Matrix) -> float:
        found = [cosine(x[j], x[i]) for i in range(1, len(x)) for j in range(i + 1, len(x))]
        return sum(found) / len(found)

    return [float(np.mean([one(x) for x in layer])) for layer in stream.outputs]


def gong(stream: Stream) -> list[float]:
    def one(x: Matrix) -> float:
        patches = x[1:]
        return float(np.mean([abs(cosine(a, b)) for a, b in itertools.permutations(patches, 2)]))

    return [float(np.mean([one(x) for x in layer])) for layer in stream.outputs]


def dong(stream: Stream) -> list[float]:
    def norm(m: Matrix) -> float:
        return float(np.sqrt(np.linalg.norm(m, 1) * np.linalg.norm(m, np.inf)))

    return [float(np.mean([norm(x - x.mean(axis=0)) / norm(x) for x in layer])) for layer in stream.outputs]


def half_diagonal(images: Sequence[Matrix]) -> Matrix:
    """The notebook's curve for a batch of images with a class token in front."""
    side = round(np.sqrt(len(images[0]) - 1))
    maps = np.stack([x[1:].T.reshape(-1, side, side) for x in images])
    level = np.log(np.abs(np.fft.fft2(maps)) + 1e-6)
    level = np.roll(level, (side // 2, side // 2), axis=(2, 3)).mean(axis=(0, 1))
    curve = np.diagonal(level)[side // 2 :]
    return np.asarray(curve - curve[0])


def park_kim_amplitude(stream: Stream) -> list[float]:
    return [float(half_diagonal(layer)[-1]) for layer in stream.outputs]


def park_kim_variance(stream: Stream) -> list[float]:
    return [float(np.mean([x[1:].var(axis=0, ddof=1).mean() for x in layer])) for layer in stream.outputs]


def random_pairs(texts: Sequence[tuple[list[int], Matrix]]) -> float:
    """The mean over all draws of two texts and a word from each."""
    pairs = [
        float(np.mean([cosine(a, b) for a in x for b in y])) for (_, x), (_, y) in itertools.permutations(texts, 2)
    ]
    return float(np.mean(pairs))


def occurrences(texts: Sequence[tuple[list[int], Matrix]]) -> list[Matrix]:
    """For each word that at least five texts have, its first vector in each."""
    found: dict[int, list[Matrix]] = {}
    for words, x in texts:
        for word in sorted(set(words)):
            found.setdefault(word, []).append(x[words.index(word)])
    return [np.stack(vectors) for vectors in found.values() if len(vectors) >= 5]


def ethayarajh_self_similarity(stream: Stream) -> list[float]:
    curve = []
    for layer in stream.outputs:
        texts = stream.words(layer)
        words = [np.mean([cosine(a, b) for a, b in itertools.permutations(v, 2)]) for v in occurrences(texts)]
        curve.append(float(np.mean(words)) - random_pairs(texts))
    return curve


def ethayarajh_intra_sentence(stream: Stream) -> list[float]:
    curve = []
    for layer in stream.outputs:
        texts = stream.words(layer)
        each = [np.mean([cosine(token, x.mean(axis=0)) for token in x]) for _, x in texts]
        curve.append(float(np.mean(each)) - random_pairs(texts))
    return curve


def ethayarajh_mev(stream: Stream) -> list[float]:
    curve = []
    for layer in stream.outputs:
        shares = []
        for vectors in occurrences(stream.words(layer)):
            sizes = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False) ** 2
            shares.append(sizes[0] / sizes.sum())
        curve.append(float(np.mean(shares)))
    return curve


def dovonon(stream: Stream) -> list[float]:
    def one(x: Matrix) -> float:
        waves = np.abs(np.fft.fft(x, axis=0)) ** 2
        return float(np.sqrt(waves[1:].sum() / waves[0].sum()))

    return [float(np.mean([one(x) for x in layer])) for layer in stream.outputs]


def yu_zhang(stream: Stream) -> list[float]:
    def one(x: Matrix) -> float:
        mean = np.full((len(x), len(x)), 1.0 / len(x))
        return float(((mean @ x) ** 2).sum() / (x**2).sum())

    return [float(np.mean([one(x) for x in layer])) for layer in stream.outputs]


REFERENCES: dict[str, Callable[[Stream], list[float]]] = {
    "dong": dong,
    "dovonon": dovonon,
    "ethayarajh_intra_sentence": ethayarajh_intra_sentence,
    "ethayarajh_mev": ethayarajh_mev,
    "ethayarajh_self_similarity": ethayarajh_self_similarity,
    "evo_vit": evo_vit,
    "gong": gong,
    "park_kim_amplitude": park_kim_amplitude,
    "park_kim_variance": park_kim_variance,
    "vita": vita,
    "yu_zhang": yu_zhang,
}
