"""Relative log amplitude: how strong the finest pattern of the tokens' picture is, next to its mean.

Shape suffixes: B sequences, Y rows and X columns of the grid, D dimensions, K frequencies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.functional._grid import Grid, on_grid
from unsmooth.functional._metric import metric
from unsmooth.functional._profile import Profile
from unsmooth.functional._tokens import Tokens

# Park & Kim's notebook adds it before the logarithm.
_FLOOR = 1e-6


def log_amplitude_curve(
    x: Tensor | Tokens, mask: Tensor | None = None, *, grid: Grid | None = None, diagonal: bool = True
) -> Tensor:
    r"""Log amplitude of each sequence's feature maps by frequency, relative to frequency 0.

    .. math:: \Delta_k = \frac1d \sum_{c=1}^d \log(|F_c(k)| + 10^{-6}) - \log(|F_c(0)| + 10^{-6})

    where F_c is the two-dimensional Fourier transform of feature c over the grid of tokens. These are the curves of
    figure 2a of Park & Kim 2022 (arXiv 2202.06709): frequencies (k, k), k = 0 … ⌊(m − 1)/2⌋, on the half-diagonal of a
    grid of m × m, as in fourier_analysis.ipynb of xxxnell/how-do-vits-work. The highest is the last below π, 6π/7 for
    14 × 14 tokens; their axis calls it 1.0π. On a grid that is not square, m is its shorter side and the other index is
    the nearest to the same frequency.

    Args:
        x: Token vectors (batch, tokens, dim), row by row.
        mask: Boolean (batch, tokens), False for class tokens, registers and all else that is not on the grid.
        grid: (height, width) in tokens; None for a square one.
        diagonal: Look at the half-diagonal, else at the mean over the ring of all frequencies at the same distance from
            0, k cycles on the shorter side, rounded.

    Returns:
        Differences (batch, ⌊(m + 1)/2⌋), the first of them 0; NaN for a sequence that does not fill the grid.

    Example:
        >>> board = torch.tensor([[[1.0], [1.0], [4.0], [1.0], [1.0], [1.0], [1.0], [1.0], [1.0]]])
        >>> log_amplitude_curve(board)  # |F| = 12 at 0, 3 elsewhere: log(3/12)
        tensor([[ 0.0000, -1.3863]])
    """
    tokens = Tokens.of(x, mask)
    values_BYXD, filled_B = on_grid(tokens, grid)
    amplitude = torch.fft.fft2(values_BYXD.double(), dim=(1, 2)).abs()
    level_BYX = (amplitude + _FLOOR).log().mean(dim=-1)
    level_BK = _along_diagonal(level_BYX) if diagonal else _over_rings(level_BYX)
    relative_BK = level_BK - level_BK[:, :1]
    return relative_BK.masked_fill(~filled_B.unsqueeze(-1), torch.nan).to(tokens.dtype)


def _along_diagonal(level_BYX: Tensor) -> Tensor:
    height, width = level_BYX.shape[1:]
    side = min(height, width)
    step_K = torch.arange((side + 1) // 2, device=level_BYX.device)
    rows, columns = ((step_K * length / side).round().long() for length in (height, width))
    return level_BYX[:, rows, columns]


def _over_rings(level_BYX: Tensor) -> Tensor:
    height, width = level_BYX.shape[1:]
    side = min(height, width)
    rows, columns = (
        torch.fft.fftfreq(length, dtype=torch.float64, device=level_BYX.device) for length in (height, width)
    )
    ring_YX = (side * torch.hypot(rows[:, None], columns[None, :])).round().long()
    rings = [level_BYX[:, ring_YX == ring].mean(dim=-1) for ring in range((side + 1) // 2)]
    return torch.stack(rings, dim=-1)


def _frequencies(count: int) -> list[float]:
    """Where each column lies between 0 and 1, as in the notebook's plot."""
    return [step / max(count - 1, 1) for step in range(count)]


@metric(
    definition="mean over features of log(|F| + 1e-6) at the highest frequency on the half-diagonal of the 2-D Fourier "
    "transform over the grid of patches, minus the same at frequency 0; class tokens left out",
    paper="Park & Kim 2022 (arXiv 2202.06709), figures 2 and 8; xxxnell/how-do-vits-work, fourier_analysis.ipynb",
    cost="O(nd log n), float64",
    chance_note="none: depends on the mean of the tokens; about 0 where they are independent with mean 0",
    degenerate="single token 0; all-zero 0; NaN where the tokens do not fill the grid",
    reads="grid",
    rises_when_alike=False,
    invariances=("reflection",),
    profile=Profile(
        log_amplitude_curve, _frequencies, "frequency (0 mean, 1 highest)", "log amplitude relative to frequency 0"
    ),
)
def relative_log_amplitude(
    x: Tensor | Tokens, mask: Tensor | None = None, *, grid: Grid | None = None, diagonal: bool = True
) -> Tensor:
    r"""Log amplitude of each sequence's feature maps at the highest frequency, relative to frequency 0.

    .. math:: \Delta = \frac1d \sum_{c=1}^d \log(|F_c(K)| + 10^{-6}) - \log(|F_c(0)| + 10^{-6}),
              \qquad K = \lfloor (m - 1)/2 \rfloor

    The last number of `log_amplitude_curve`, which figure 8 of Park & Kim 2022 (arXiv 2202.06709) plots over depth:
    attention lowers it, MLPs raise it. The mean over features and images is taken of logarithms, as there. Unlike
    `hfc_lfc` it knows where the tokens lie, looks at one frequency only, and weighs all features alike.

    Args:
        x: Token vectors (batch, tokens, dim), row by row.
        mask: Boolean (batch, tokens), False for class tokens, registers and all else that is not on the grid.
        grid: (height, width) in tokens; None for a square one.
        diagonal: As in `log_amplitude_curve`.

    Returns:
        One value per sequence (batch,). A single token and an all-zero sequence give 0, a sequence that does not fill
        the grid NaN.

    Example:
        >>> board = torch.tensor([[[1.0], [1.0], [4.0], [1.0], [1.0], [1.0], [1.0], [1.0], [1.0]]])
        >>> relative_log_amplitude(board)  # log(3/12)
        tensor([-1.3863])
    """
    return log_amplitude_curve(x, mask, grid=grid, diagonal=diagonal)[:, -1]
