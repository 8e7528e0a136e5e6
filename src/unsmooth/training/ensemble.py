r"""Many small networks of one architecture, trained side by side as one.

The parameters of M networks lie one under the other, (M, P), and every activation has M times the batch. Linear maps,
norms and tables know the members; whatever acts on each sample by itself, attention and remedies among it, sees
nothing but a larger batch. So a step costs one launch of each kernel whatever M is, and on a GPU the whole of it
(batch, forward, backward, clipping, AdamW) is captured as one CUDA graph. Members differ in weights, order of data and
learning rate, and none feels another: each has its own gradient norm, clipped by itself, and its own AdamW,

.. math:: \theta \leftarrow (1 - \eta_t w)\,\theta - \eta_t\, \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t)}
    + \epsilon}

with weight decay w on matrices and none on vectors, as in the project's other training.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.errors import expected
from unsmooth.networks.embedding import TextNetwork
from unsmooth.remedies.learned_scale import LearnedScale

# Inputs (members, batch, ...) and labels (members, batch, ...) of the step whose number is handed in, (1,) int64.
Batches = Callable[[Tensor], tuple[Tensor, Tensor]]

_BETAS, _EPS = (0.9, 0.999), 1e-8


class Ensemble:
    """Members with their weights and the state of their optimisers.

    Args:
        networks: Of one architecture, with the same remedies; they are left as they are.
        members: For each member the place in `networks` of the one whose weights it starts with; one each where None.
        device: Where they are trained.
        dtype: In what.

    Example:
        >>> from unsmooth.networks import ViT, ViTConfig
        >>> config = ViTConfig(depth=2, dim=8, heads=2, hidden=16, image=8, patch=4, classes=5)
        >>> ensemble = Ensemble([ViT(config, seed=0), ViT(config, seed=1)], members=(0, 0, 1))
        >>> ensemble(torch.zeros(3, 4, 3, 8, 8)).shape
        torch.Size([3, 4, 5])
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        members: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        chosen = torch.tensor(range(len(networks)) if members is None else members)
        self.size = len(chosen)
        self.network = deepcopy(networks[0]).to(device=device, dtype=dtype)
        named = dict(self.network.named_parameters())
        # Numbers that come in fours first: then every matrix lies where wide loads may begin.
        self.names = sorted(named, key=lambda name: named[name].numel() % 4 > 0)
        rows = [
            torch.cat([dict(one.named_parameters())[name].detach().flatten() for name in self.names])
            for one in networks
        ]
        self.weights = torch.stack(rows).to(dtype)[chosen].to(device)
        sizes = [named[name].numel() for name in self.names]
        self.leaves = {
            name: torch.unflatten(part, 1, named[name].shape).detach().requires_grad_()
            for name, part in zip(self.names, torch.split(self.weights, sizes, dim=1), strict=True)
        }
        decays = [
            torch.full((size,), float(named[name].ndim > 1)) for name, size in zip(self.names, sizes, strict=True)
        ]
        self.decays = torch.cat(decays).to(self.weights)
        self.rates: Tensor | None = None
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self._spread = self._adapt()

    def scale_rates(self, by: Mapping[str, float]) -> None:
        """Multiply the learning rates of parameters, by their names; of all of them."""
        parts = [leaf.new_full((leaf.numel() // self.size,), by[name]) for name, leaf in self.leaves.items()]
        self.rates = torch.cat(parts)

    def _adapt(self) -> dict[str, Callable[[Tensor, int], Tensor]]:
        """Have modules know the members; of the other parameters, how each is spread over the samples of a batch."""
        spread: dict[str, Callable[[Tensor, int], Tensor]] = {}
        for path, module in self.network.named_modules():
            if isinstance(module, TextNetwork):
                module.embedded = partial(_embedded, module, self.size)  # type: ignore[method-assign]
                module.logits = partial(_logits, module, self.size)  # type: ignore[method-assign]
            if isinstance(module, nn.Linear):
                module.forward = partial(_linear, module, self.size)  # type: ignore[method-assign]
            if isinstance(module, nn.LayerNorm):
                module.forward = partial(_layer_norm, module, self.size)  # type: ignore[method-assign]
            for name, parameter in module.named_parameters(recurse=False):
                full = f"{path}.{name}" if path else name
                if isinstance(module, LearnedScale):
                    spread[full] = _spread_numbers
                elif parameter.ndim > 1 and parameter.shape[0] == 1:
                    spread[full] = _spread_rows
                elif not isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding | TextNetwork):
                    what = "parameters that an ensemble can stack (of linear maps, norms, tables, learned scales)"
                    raise expected(what, f"{full!r} of {type(module).__name__}", "training these networks one by one")
        return spread

    def parameters(self, batch: int) -> dict[str, Tensor]:
        """What stands in the place of the network's parameters for so many samples of each member."""
        return {
            name: self._spread[name](leaf, batch) if name in self._spread else leaf
            for name, leaf in self.leaves.items()
        }

    def __call__(self, inputs: Tensor) -> Tensor:
        """Logits (members, batch, ...) of inputs (members, batch, ...)."""
        out = functional_call(self.network, self.parameters(inputs.shape[1]), (inputs.flatten(0, 1),))
        logits: Tensor = out[0] if isinstance(out, tuple) else out
        return torch.unflatten(logits, 0, (self.size, -1))

    def losses(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy (members,) in the mean over a batch."""
        logits = self(inputs)
        each = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
        return each.view(self.size, -1).mean(dim=1)

    def gradients(self, losses: Tensor) -> Tensor:
        """Of each member's loss to its own weights, (members, P)."""
        return self.flat(torch.autograd.grad(losses.sum(), list(self.leaves.values())))

    def flat(self, gradients: Iterable[Tensor]) -> Tensor:
        """What belongs to the leaves, in one row (members, P) each."""
        return torch.cat([one.reshape(self.size, -1) for one in gradients], dim=1)

    def member(self, place: int) -> dict[str, Tensor]:
        """The parameters of one member, by name, as its network would have them."""
        return {name: leaf.detach()[place].clone() for name, leaf in self.leaves.items()}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Afterwards weights and optimisers are again what they were."""
        state = (self.weights, self.mean, self.square, *self.network.buffers())
        kept = [one.clone() for one in state]
        try:
            yield
        finally:
            for one, before in zip(state, kept, strict=True):
                one.copy_(before)

    def train(
        self,
        batches: Batches,
        rates_SM: Tensor,
        *,
        weight_decay: float = 0.05,
        clip: float = 1.0,
        first: int = 0,
        capture: bool | None = None,
        tell: Callable[[str], object] = print,
    ) -> tuple[Tensor, Tensor]:
        """As many steps as `rates_SM` has rows, from optimisers at rest or, from step `first` on, where they were left.

        Args:
            batches: Gives the batch of a step; on a GPU it must not wait for the device.
            rates_SM: (steps, members) the learning rates.
            weight_decay: Of matrices, times the learning rate.
            clip: The largest norm of a member's gradient.
            first: So many of the steps have been done.
            capture: Have the step run as one CUDA graph; None for yes on a GPU.
            tell: Called with a line where a capture fails and the steps run one kernel at a time instead.

        Returns:
            Losses (steps, members), each before its step, and norms of the gradients before they were clipped.
        """
        steps, device = len(rates_SM), self.weights.device
        step = _Step(self, batches, rates_SM.to(self.weights), weight_decay, clip)
        replay: Callable[[], None] = step
        if device.type == "cuda" if capture is None else capture:
            replay = self._captured(step, tell)
        if first == 0:
            self.mean.zero_()
            self.square.zero_()
        step.at.fill_(first)
        for _ in range(first, steps):
            replay()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            del replay
            gc.collect()
            torch.cuda.empty_cache()  # a graph's memory is its own while it is there
        return step.losses, step.norms

    def _captured(self, step: _Step, tell: Callable[[str], object]) -> Callable[[], None]:
        """The step as a graph, or as it is where that fails."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with self.restored():
            try:
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    for _ in range(2):
                        step()
                torch.cuda.current_stream().wait_stream(stream)
                with torch.cuda.graph(graph, stream=stream):
                    step()
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError as error:
                tell(f"no CUDA graph ({str(error).splitlines()[0]}): the steps run one kernel at a time")
                torch.cuda.synchronize()
                return step
        return graph.replay


class Alone(Ensemble):
    """One network by itself, whatever its remedies keep, in the place of an ensemble.

    Its parameters are views of the row of weights. It is a network like any other: switch it to evaluation before it is
    looked at, and back.

    Args:
        network: It is left as it is.
        device: Where it is trained.
        dtype: In what.
    """

    def __init__(
        self, network: nn.Module, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.size = 1
        self.network = deepcopy(network).to(device=device, dtype=dtype).train()
        named = dict(self.network.named_parameters())
        self.names = sorted(named, key=lambda name: named[name].numel() % 4 > 0)
        self.leaves = {name: named[name] for name in self.names}
        self.weights = self.flat(leaf.detach() for leaf in self.leaves.values())
        parts = torch.split(self.weights[0], [leaf.numel() for leaf in self.leaves.values()])
        for leaf, part in zip(self.leaves.values(), parts, strict=True):
            leaf.data = part.view(leaf.shape)
        decays = [
            part.new_full(part.shape, float(leaf.ndim > 1))
            for leaf, part in zip(self.leaves.values(), parts, strict=True)
        ]
        self.decays = torch.cat(decays)
        self.rates = None
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Logits (1, batch, ...) of inputs (1, batch, ...)."""
        out = self.network(inputs[0])
        logits: Tensor = out[0] if isinstance(out, tuple) else out
        return logits[None]

    def member(self, place: int) -> dict[str, Tensor]:
        """The parameters, by name."""
        return {name: leaf.detach().clone() for name, leaf in self.leaves.items()}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Afterwards weights and optimiser are again what they were, and so is what remedies know of them."""
        with super().restored():
            yield
        self.network.eval()
        self.network.train()


class _Step:
    """One step of all members; nothing in it waits for the device."""

    def __init__(
        self, ensemble: Ensemble, batches: Batches, rates_SM: Tensor, weight_decay: float, clip: float
    ) -> None:
        self.ensemble, self.batches, self.rates_SM = ensemble, batches, rates_SM
        self.weight_decay, self.clip = weight_decay, clip
        self.at = torch.zeros(1, dtype=torch.int64, device=rates_SM.device)
        self.losses, self.norms = torch.zeros_like(rates_SM), torch.zeros_like(rates_SM)
        first, second = _BETAS
        made = torch.arange(1, len(rates_SM) + 1, dtype=torch.float64)
        self.corrections_S2 = torch.stack([1 - first**made, (1 - second**made).sqrt()], dim=1).to(rates_SM)

    def __call__(self) -> None:
        losses = self.ensemble.losses(*self.batches(self.at))
        gradients = self.ensemble.gradients(losses)
        with torch.no_grad():
            norms = torch.linalg.vector_norm(gradients, dim=1)
            self.losses.index_copy_(0, self.at, losses.detach()[None])
            self.norms.index_copy_(0, self.at, norms[None])
            gradients.mul_((self.clip / (norms + 1e-6)).clamp(max=1.0)[:, None])
            self._move(gradients)
            self.at.add_(1)

    def _move(self, gradients: Tensor) -> None:
        """AdamW."""
        ensemble, (first, second) = self.ensemble, _BETAS
        rate_M1 = self.rates_SM.index_select(0, self.at).mT
        first_correction, second_correction = self.corrections_S2.index_select(0, self.at)[0]
        ensemble.mean.lerp_(gradients, 1 - first)
        ensemble.square.mul_(second).addcmul_(gradients, gradients, value=1 - second)
        torch.sqrt(ensemble.square, out=gradients)
        gradients.div_(second_correction).add_(_EPS)
        torch.div(ensemble.mean, gradients, out=gradients)
        decays = ensemble.decays
        if ensemble.rates is not None:
            gradients.mul_(ensemble.rates)
            decays = decays * ensemble.rates
        ensemble.weights.mul_(1 - rate_M1 * self.weight_decay * decays)
        ensemble.weights.addcmul_(gradients, rate_M1 / first_correction, value=-1)


def warm_cosine(steps: int, warmup: int, rates: Iterable[float]) -> Tensor:
    """Learning rates (steps, members): up in a line over the warm-up, then down to 0 by a cosine.

    >>> warm_cosine(4, 2, [1.0]).flatten().tolist()
    [0.5, 1.0, 1.0, 0.5]
    """
    at = torch.arange(steps, dtype=torch.float64)
    past = ((at - warmup) / max(1, steps - warmup)).clamp(min=0)
    share = torch.where(at < warmup, (at + 1) / max(1, warmup), (1 + torch.cos(math.pi * past)) / 2)
    return share[:, None] * torch.tensor(list(rates), dtype=torch.float64)


def _linear(module: nn.Linear, members: int, x: Tensor) -> Tensor:
    rows = x.reshape(members, -1, x.shape[-1])
    weight_MIO = module.weight.mT
    out = rows @ weight_MIO if module.bias is None else torch.baddbmm(module.bias[:, None], rows, weight_MIO)
    return out.view(*x.shape[:-1], -1)


def _layer_norm(module: nn.LayerNorm, members: int, x: Tensor) -> Tensor:
    out = F.layer_norm(x, x.shape[-1:], eps=module.eps).reshape(members, -1, x.shape[-1])
    bias: Tensor | None = module.bias
    weight = module.weight[:, None]
    return (out * weight if bias is None else torch.addcmul(bias[:, None], out, weight)).view(x.shape)


def _embedded(module: TextNetwork, members: int, input_ids: Tensor) -> Tensor:
    table_MVD = module.tokens.weight
    own_M1 = torch.arange(members, device=input_ids.device)[:, None] * table_MVD.shape[1]
    rows = (input_ids.reshape(members, -1) + own_M1).view(input_ids.shape)
    return F.embedding(rows, table_MVD.flatten(0, 1)) * module.embedding_scale


def _logits(module: TextNetwork, members: int, x: Tensor) -> Tensor:
    weight_MVD = module.tokens.weight if module.head_weight is None else module.head_weight
    out = x.reshape(members, -1, x.shape[-1]) @ weight_MVD.mT
    if module.head_bias is not None:
        out = out + module.head_bias[:, None]
    return out.view(*x.shape[:-1], -1)


def _spread_rows(leaf: Tensor, batch: int) -> Tensor:
    """From (members, 1, ...), which every sample has, to (members · batch, ...)."""
    return leaf.expand(-1, batch, *leaf.shape[2:]).flatten(0, 1)


def _spread_numbers(leaf_MK: Tensor, batch: int) -> Tensor:
    """From K numbers of each member to (K, members · batch, 1, 1): each of the K multiplies samples of three axes."""
    return leaf_MK.mT[:, :, None].expand(-1, -1, batch).flatten(1)[:, :, None, None]
