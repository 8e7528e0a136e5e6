r"""What one pre-norm layer does to t_sim, as a function of how large the stream is.

The norm takes the stream's scale away: at scale s the layer makes sX + B of sX, with one B = A N(X) H for all s. Then

.. math:: t(sX + B) > t(X) \iff s \cdot 2(qP - Qp) + (rP - Rp) > 0

with p, P = ‖ΠX‖², ‖X‖², q, Q = ⟨ΠX, ΠB⟩, ⟨X, B⟩ and r, R = ‖ΠB‖², ‖B‖². The left side is linear in s: the direction
turns at one scale at most. In a large stream the sign of B decides, so that of H or of the norm's weight; in a small
one whether B itself is more alike than X, whatever the sign.

Shape suffixes: N tokens, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from numpy.random import Generator
from torch import Tensor

from unsmooth.evidence.claims._random_layers import basis, new_seed, tokens
from unsmooth.theory import iterate, random_attention

SHARED = 0.6


@dataclass(frozen=True)
class Turning:
    """The two numbers that decide a layer's direction at every scale.

    Attributes:
        of_sign: 2(qP − Qp): changes its sign with B.
        of_size: rP − Rp: does not.
    """

    of_sign: float
    of_size: float

    def rises(self, scale: float, sign: float = 1.0) -> bool:
        """Whether t_sim rises at this scale of the stream; `sign` −1 for −B."""
        return sign * scale * self.of_sign + self.of_size > 0.0

    @property
    def scale(self) -> float:
        """Above it B and −B lead to opposite directions, below it to the same one."""
        return abs(self.of_size / self.of_sign)


def turning(x_ND: Tensor, branch_ND: Tensor) -> Turning:
    """From the stream and what its branch adds.

    >>> x = torch.tensor([[2.0, 1.0], [2.0, -1.0]])
    >>> mean = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
    >>> turning(x, -mean).scale  # |1 − 1/s| is 1 at s = 1/2
    0.5
    """
    mean, added = x_ND.mean(dim=0), branch_ND.mean(dim=0)
    n, size = len(x_ND), float(x_ND.square().sum())
    p, q, r = (n * float(a @ b) for a, b in ((mean, mean), (mean, added), (added, added)))
    across, extra = float((x_ND * branch_ND).sum()), float(branch_ND.square().sum())
    return Turning(of_sign=2.0 * (q * size - across * p), of_size=r * size - extra * p)


def branch(x_ND: Tensor, attention: Tensor, h: Tensor, weight: Tensor | None = None) -> Tensor:
    """A N(X; γ) H: what a pre-norm layer adds."""
    after = iterate(x_ND, attention, h, depth=1, norm="pre", norm_weight=weight, normalise=False).x_ND
    return after - x_ND.double()


def unit_stream(random: Generator, n: int, d: int) -> Tensor:
    """Tokens with a shared part, of standard deviation 1."""
    x_ND = tokens(random, n, d) + SHARED * tokens(random, 1, d)
    return x_ND / x_ND.std()


def definite(random: Generator, d: int, low: float, high: float) -> Tensor:
    """Symmetric H (d, d) with independent uniform eigenvalues in a random basis."""
    turn = basis(random, d)
    return turn.T @ torch.diag(torch.from_numpy(random.uniform(low, high, size=d))) @ turn


def peaked_or_flat(random: Generator, n: int) -> Tensor:
    """Softmax attention over n tokens."""
    return random_attention(n, seed=new_seed(random), logit_std=float(random.uniform(0.3, 3.0)))
