"""Frozen embeddings are led to a standard normal distribution by a small flow (after BERT-flow, Li et al. 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.numbers import is_number
from unsmooth.posthoc.arrays import Array, like
from unsmooth.posthoc.coupling import CouplingFlow, flow_with
from unsmooth.posthoc.estimator import Estimator, estimator, whole

# Gradients above this norm are shortened: a likelihood has no upper bound.
_CLIP = 1.0


@estimator
class Flow(Estimator):
    r"""An invertible map, learned by likelihood, under which the samples look standard normal.

    .. math:: \log p(x) = \log \mathcal N(f(x); 0, I) + \log \Big|\det \frac{\partial f}{\partial x}\Big|

    Source: Li et al. 2020 (arXiv 2011.05864, github.com/bohanli/BERT-flow) with the steps of Glow (arXiv 1807.03039).
    This is a small flow of our own: rotations are fixed, there is one scale, and sizes are options with defaults of
    ours. Correlations it learns slowly, as no rotation is learned: hand it whitened samples, which it takes further. It
    needs many more samples than dimensions to be more than a whitening; few of them it learns by heart.

    Args:
        layers: Steps of the flow.
        hidden: Width of the networks inside; None takes the number of dimensions.
        steps: Of training.
        batch: Samples in each; all of them where there are fewer.
        learning_rate: Of Adam, falling to zero along a half cosine.
        seed: Of the first weights, the rotations and the order of samples: the same seed gives the same flow.

    Training is in float32, the flow itself in float64: `inverse_transform` undoes `transform` to about 1e-10.

    Example:
        >>> x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)) * 3 + 1
        >>> flow = Flow(layers=2, steps=20).fit(x)
        >>> z = flow.transform(x)
        >>> torch.allclose(flow.inverse_transform(z), x, atol=1e-4)
        True
    """

    name = "flow"
    summary = "embeddings are led to a standard normal distribution by an invertible network"
    equation = "x ← f(x), log p(x) = log N(f(x); 0, I) + log |det ∂f/∂x|"
    paper = "after Li et al. 2020, arXiv 2011.05864"
    learned = ()

    flow_: CouplingFlow
    log_likelihoods_: list[float]
    """Mean log-likelihood of each step of training, on its batch."""

    def __init__(
        self,
        layers: int = 4,
        hidden: int | None = None,
        steps: int = 500,
        batch: int = 256,
        learning_rate: float = 1e-3,
        seed: int = 0,
    ) -> None:
        self.layers = layers
        self.hidden = hidden
        self.steps = steps
        self.batch = batch
        self.learning_rate = learning_rate
        self.seed = seed

    def _built(self, dimensions: int) -> CouplingFlow:
        hidden = dimensions if self.hidden is None else whole("hidden", self.hidden, None, least=1)
        layers, seed = whole("layers", self.layers, 4, least=1), whole("seed", self.seed, 0, least=0, most=2**63 - 1)
        return CouplingFlow(dimensions, layers, hidden, seed)

    def _check_training(self) -> None:
        whole("steps", self.steps, 500, least=0)
        whole("batch", self.batch, 256, least=1)
        if not is_number(self.learning_rate) or not 0 < self.learning_rate < float("inf"):
            raise expected("learning_rate above 0", repr(self.learning_rate), "learning_rate=1e-3")

    def _fit(self, x_ND: Tensor) -> None:
        samples, dimensions = x_ND.shape
        if dimensions < 2:
            raise expected("at least two dimensions, one to move the other", dimensions, "Whitening()")
        if samples < 2:
            raise expected("at least two samples to learn from", samples, "more of them")
        same = int((x_ND == x_ND[0]).all(dim=0).sum())
        if same:
            hint = "Whitening(dimensions=…) first, which keeps the directions in which they vary"
            raise expected("samples that vary in every dimension", f"{same} in which they are equal", hint)
        self._check_training()
        # Optimisers of some versions of torch make their counters on its default device, where the flow may not be.
        with torch.enable_grad(), x_ND.device:
            flow = self._built(dimensions).to(x_ND.device)
            # In float64, so that float32 holds what is left however large the samples are, or how far from zero.
            mean_D, std_D = x_ND.mean(dim=0), x_ND.std(dim=0)
            standard_ND = ((x_ND - mean_D) / std_D).float()
            flow.start(standard_ND)
            found = self._trained(flow, standard_ND)
        stretched = float(std_D.log().sum())
        self.log_likelihoods_ = [mean - stretched for mean in found]
        self.flow_ = flow.double().requires_grad_(False)
        self.flow_.after(mean_D, std_D)

    def _trained(self, flow: CouplingFlow, x_ND: Tensor) -> list[float]:
        generator = torch.Generator().manual_seed(self.seed)
        optimiser = torch.optim.Adam(flow.parameters(), lr=self.learning_rate)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, self.steps))
        order = torch.empty(0, dtype=torch.int64, device="cpu")
        size, found = min(self.batch, len(x_ND)), []
        for step in range(self.steps):
            if len(order) < size:
                order = torch.randperm(len(x_ND), device="cpu", generator=generator)
            chosen, order = order[:size], order[size:]
            mean = flow.log_likelihood(x_ND[chosen.to(x_ND.device)]).mean()
            if not bool(mean.isfinite()):
                raise expected(f"a finite likelihood in step {step}", mean.item(), "a lower learning_rate")
            found.append(mean.item())
            optimiser.zero_grad()
            (-mean / x_ND.shape[1]).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(flow.parameters(), _CLIP)
            optimiser.step()
            falling.step()
        return found

    def _on(self, device: Any) -> CouplingFlow:
        return self.flow_.to(device)

    def _transform(self, x_ND: Tensor) -> Tensor:
        z_ND: Tensor = self._on(x_ND.device)(x_ND)[0]
        return z_ND

    def inverse_transform(self, X: Array) -> Array:
        """Back to embeddings, exactly."""
        z_ND = self.embeddings(X)
        return like(self._on(z_ND.device).undo(z_ND), X)

    def score_samples(self, X: Array) -> Array:
        """Log p(x) of each sample, in nats; in float32 where the samples have fewer digits, as sums have more."""
        self._check_names(X)
        x_ND = self.embeddings(X)
        return like(self._on(x_ND.device).log_likelihood(x_ND), X, at_least=torch.float32)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log p(x) over samples, in nats: the higher the better, for choosing settings on samples kept apart."""
        self._check_names(X)
        x_ND = self.embeddings(X)
        return float(self._on(x_ND.device).log_likelihood(x_ND).mean())

    def tensors(self) -> dict[str, Tensor]:
        """The weights of the flow, and how training went."""
        history = torch.tensor(self.log_likelihoods_, dtype=torch.float64, device="cpu")
        return {**{f"flow_.{key}": value for key, value in self.flow_.state_dict().items()}, "history": history}

    def take_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The reverse of `tensors`."""
        weights = {key.removeprefix("flow_."): value for key, value in tensors.items() if key.startswith("flow_.")}
        self.flow_ = flow_with(weights, self.n_features_in_).requires_grad_(False)
        self.log_likelihoods_ = tensors["history"].tolist()
