"""A small normalising flow after Glow: scale and shift, turn, let one half move the other; again and again.

Each step can be undone exactly and says by how much it stretches space (Kingma & Dhariwal 2018, arXiv 1807.03039).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from unsmooth.errors import expected

# Largest logarithm by which one coupling stretches a dimension: e² is plenty, and nothing overflows.
_MOST = 2.0


class FlowStep(nn.Module):
    """Scale and shift each dimension, turn, then an affine coupling.

    Args:
        dimensions: Of an embedding.
        hidden: Width of the network inside.
        generator: What the first weights and the turn are drawn from.
    """

    rotation: Tensor

    def __init__(self, dimensions: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.still = dimensions // 2
        # On the processor, where its generator is, whatever device is torch's default.
        self.log_scale = nn.Parameter(torch.zeros(dimensions, dtype=torch.float32, device="cpu"))
        self.shift = nn.Parameter(torch.zeros(dimensions, dtype=torch.float32, device="cpu"))
        # Glow learns this map; a fixed rotation mixes as well, is undone by its transpose and stretches nothing.
        noise = torch.randn(dimensions, dimensions, dtype=torch.float64, device="cpu", generator=generator)
        # In float64 whatever the rest is, because one that is rounded has no transpose to undo it.
        self.register_buffer("rotation", torch.linalg.qr(noise)[0])
        self.first = _undrawn(self.still, hidden)
        self.second = _undrawn(hidden, hidden)
        self.last = _undrawn(hidden, 2 * (dimensions - self.still))
        for layer in (self.first, self.second):
            nn.init.normal_(layer.weight, std=1.0 / math.sqrt(layer.in_features), generator=generator)
            nn.init.zeros_(layer.bias)
        # So that a coupling starts as the identity.
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def _moves(self, still: Tensor) -> tuple[Tensor, Tensor]:
        inside = torch.nn.functional.silu(self.second(torch.nn.functional.silu(self.first(still))))
        raw, shift = self.last(inside).chunk(2, dim=-1)
        return _MOST * torch.tanh(raw / _MOST), shift

    @torch.no_grad()
    def start(self, x_ND: Tensor) -> None:
        """Have scale and shift begin so that each dimension has mean 0 and variance 1."""
        self.log_scale.copy_(-x_ND.std(dim=0).clamp_min(1e-6).log())
        self.shift.copy_(-x_ND.mean(dim=0) * self.log_scale.exp())

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Towards the normal distribution: what comes out, and log |det| of the step for each sample."""
        turned = (x_ND * self.log_scale.exp() + self.shift) @ self.rotation.to(x_ND.dtype)
        still, moved = turned[:, : self.still], turned[:, self.still :]
        log_stretch, shift = self._moves(still)
        out = torch.cat([still, moved * log_stretch.exp() + shift], dim=-1)
        return out, log_stretch.sum(dim=-1) + self.log_scale.sum()

    def undo(self, z_ND: Tensor) -> Tensor:
        """The way back."""
        still, moved = z_ND[:, : self.still], z_ND[:, self.still :]
        log_stretch, shift = self._moves(still)
        turned = torch.cat([still, (moved - shift) * (-log_stretch).exp()], dim=-1)
        return (turned @ self.rotation.mT.to(z_ND.dtype) - self.shift) * (-self.log_scale).exp()


def _undrawn(inputs: int, outputs: int) -> nn.Linear:
    """A linear map without first weights: torch's own come from the generator that everybody shares."""
    made: nn.Linear = skip_init(nn.Linear, inputs, outputs, dtype=torch.float32)  # type: ignore[no-untyped-call]
    return made


class CouplingFlow(nn.Module):
    """Several steps, one after the other.

    Args:
        dimensions: Of an embedding, at least 2.
        layers: Steps.
        hidden: Width of the networks inside.
        seed: The same seed gives the same flow.
    """

    def __init__(self, dimensions: int, layers: int, hidden: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.steps = nn.ModuleList(FlowStep(dimensions, hidden, generator) for _ in range(layers))

    def _each(self) -> Iterator[FlowStep]:
        for step in self.steps:
            assert isinstance(step, FlowStep)
            yield step

    @torch.no_grad()
    def start(self, x_ND: Tensor) -> None:
        """Have every step begin with what reaches it at mean 0 and variance 1."""
        for step in self._each():
            step.start(x_ND)
            x_ND = step(x_ND)[0]

    @torch.no_grad()
    def after(self, mean_D: Tensor, std_D: Tensor) -> None:
        """Take up (x − mean)/std, which was done before the flow, into its first scale and shift."""
        first = next(self._each())
        first.log_scale.sub_(std_D.log())
        first.shift.sub_(mean_D * first.log_scale.exp())

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """What comes out, and log |det| for each sample."""
        stretched_N = x_ND.new_zeros(x_ND.shape[0])
        for step in self._each():
            x_ND, more_N = step(x_ND)
            stretched_N = stretched_N + more_N
        return x_ND, stretched_N

    def undo(self, z_ND: Tensor) -> Tensor:
        """The way back."""
        for step in reversed(list(self._each())):
            z_ND = step.undo(z_ND)
        return z_ND

    def log_likelihood(self, x_ND: Tensor) -> Tensor:
        """Log p(x) of each sample: that of a standard normal where it ends, and how much space was stretched."""
        z_ND, stretched_N = self(x_ND)
        normal_N = -0.5 * z_ND.square().sum(dim=-1) - 0.5 * z_ND.shape[-1] * math.log(2 * math.pi)
        found_N: Tensor = normal_N + stretched_N
        return found_N


def flow_with(weights: dict[str, Tensor], dimensions: int) -> CouplingFlow:
    """The flow that has these weights, as wide and deep as they say, in float64."""
    layers = len({name.split(".")[1] for name in weights})
    if (found := len(weights["steps.0.log_scale"])) != dimensions:  # before matrices of that size are drawn
        raise expected(f"a flow of {dimensions} dimensions", found, "the tensors that were saved with them")
    flow = CouplingFlow(dimensions, layers, weights["steps.0.first.weight"].shape[0], seed=0).double()
    flow.load_state_dict(weights)
    return flow
