"""Token sets on which a careless measurement shows, and the truth about them in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LOW, HIGH = 0.05, 0.95
"""The spread of cosines is the distance between these quantiles."""
PADDED = "padding"
UNEQUAL = "texts of unequal length"


@dataclass(frozen=True)
class Case:
    """Texts of token vectors.

    Args:
        name: What is tried.
        about: The same in a few words more.
        tokens_BND: Vectors in float32.
        lengths: Real tokens of each text; what follows them is padding, with vectors as a model leaves them there.
        dtype: What the tools are handed.
    """

    name: str
    about: str
    tokens_BND: NDArray[np.float32]
    lengths: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def padded(self) -> tuple[Tensor, Tensor]:
        """All texts as one batch, and the mask of real tokens."""
        mask = torch.arange(self.tokens_BND.shape[1]) < torch.tensor(self.lengths)[:, None]
        return torch.from_numpy(self.tokens_BND).to(self.dtype), mask

    def texts(self) -> list[Tensor]:
        """What a tool without masks is handed, text by text: padding too, where padding is what is tried."""
        tokens_BND, _ = self.padded()
        lengths = [tokens_BND.shape[1]] * len(tokens_BND) if self.name == PADDED else self.lengths
        return [text[:length] for text, length in zip(tokens_BND, lengths, strict=True)]

    def real(self) -> list[NDArray[np.float64]]:
        """Real tokens as the tools see them, after rounding to their type, in float64."""
        tokens_BND = torch.from_numpy(self.tokens_BND).to(self.dtype).double().numpy()
        return [text[:length] for text, length in zip(tokens_BND, self.lengths, strict=True)]


def all_cases(hidden_BND: NDArray[np.float32] | None = None) -> list[Case]:
    """The cases; `hidden_BND` are activations of a real model."""
    generator = np.random.default_rng(0)
    tokens = (generator.normal(size=(8, 64, 96)) + 0.8 * generator.normal(size=(8, 1, 96))).astype(np.float32)
    whole = (64,) * 8
    unequal = (64, 50, 41, 64, 33, 20, 57, 12)
    same = np.repeat(tokens[:, :1], 4, axis=1)
    zeroed = tokens.copy()
    zeroed[:, 5] = 0.0
    far = tokens.copy()
    far[:, :, 7] += 40.0
    cases = [
        Case("plain tokens", "8 texts of 64 tokens, 96 features", tokens, whole),
        Case(PADDED, "the same, padded from 12 to 64 real tokens", tokens, unequal),
        Case(UNEQUAL, "the same without the padding", tokens, unequal),
        Case("bfloat16", "the first, handed over in bfloat16", tokens, whole, torch.bfloat16),
        Case("bfloat16, alike", "one huge feature, cosines near 1, in bfloat16", far, whole, torch.bfloat16),
        Case("identical tokens", "4 times the same token", same, (4,) * 8),
        Case("a zero token", "one token in 64 is all zeros; its cosines count as 0", zeroed, whole),
        Case("small norms", "the first, times 10⁻⁵", tokens * np.float32(1e-5), whole),
    ]
    if hidden_BND is not None:
        count, length = hidden_BND.shape[:2]
        cases.append(Case("a real layer", "last layer of all-MiniLM-L6-v2", hidden_BND, (length,) * count))
    return cases


def truth(case: Case) -> dict[str, float]:
    """Every quantity in float64, from its definition, as means over texts."""
    found = [_of_text(text) for text in case.real()]
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def _of_text(x_ND: NDArray[np.float64]) -> dict[str, float]:
    norms = np.linalg.norm(x_ND, axis=1, keepdims=True)
    unit = np.divide(x_ND, norms, out=np.zeros_like(x_ND), where=norms > 0)
    cosines = unit @ unit.T
    singular = np.linalg.svd(x_ND, compute_uv=False)
    share = singular[singular > 1e-13 * singular[0]] / singular.sum()
    return {
        "mean_cosine": float(off_diagonal(cosines).mean()),
        "mean_cosine_with_self": float(cosines.mean()),
        "cosine_spread": spread(cosines[None]),
        "effective_rank": float(np.exp(-(share * np.log(share)).sum())),
        "stable_rank": float((singular**2).sum() / singular[0] ** 2),
    }


def off_diagonal(matrix_NN: NDArray[Any]) -> NDArray[Any]:
    """Entries i < j of a symmetric matrix.

    >>> off_diagonal(np.array([[1, 2], [2, 4]])).tolist()
    [2]
    """
    return matrix_NN[np.triu_indices(len(matrix_NN), 1)]


def spread(cosines_BNN: NDArray[Any]) -> float:
    """Distance between the 5 % and the 95 % quantile of the cosines of pairs, as a mean over matrices."""
    ranges = [np.quantile(off_diagonal(one), (LOW, HIGH)) for one in cosines_BNN]
    return float(np.mean([high - low for low, high in ranges]))


def save(cases: Sequence[Case], path: Path) -> None:
    """Write the cases for the processes of the tools."""
    torch.save([vars(case) | {"tokens_BND": torch.from_numpy(case.tokens_BND)} for case in cases], path)


def read(path: Path) -> list[Case]:
    """What `save` wrote."""
    stored = torch.load(path, weights_only=True)
    return [Case(**(one | {"tokens_BND": one["tokens_BND"].numpy()})) for one in stored]
