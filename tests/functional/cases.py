"""Inputs on which the metrics are tried, for each kind of input a metric reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.functional.references import ENTRIES, Matrix
from unsmooth.functional import METRICS, Metric

BATCH, TOKENS, DIM, HEADS = 3, 12, 7, 2
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}


def metrics_reading(*kinds: str) -> list[str]:
    """Names of the metrics that read one of these kinds of input."""
    return [name for name, metric in METRICS.items() if metric.reads in kinds]


# One value for the tokens of any sequence. Those on a grid, and those across sequences, have tests of their own.
PER_SEQUENCE = metrics_reading("tokens", "pair", "attention")
SETTINGS = [(name, options) for name in PER_SEQUENCE for options in ENTRIES[name].options]


def setting_id(value: object) -> str | None:
    """Test names that can be read: mean_cosine-absolute=True."""
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items()) or "default"
    return None


@dataclass
class Case:
    """Tensors to hand to a metric, and the mask over their tokens."""

    inputs: tuple[Tensor, ...]
    mask: Tensor | None = None

    def measure(self, metric: Metric, **options: Any) -> Tensor:
        """Call the metric."""
        return metric.function(*self.inputs, self.mask, **options)

    def expect(self, metric: Metric, **options: Any) -> list[float]:
        """Call the reference on the real tokens of each sequence."""
        entry = ENTRIES[metric.name]
        if "epsilon" in inspect.signature(entry.reference).parameters:
            options = {**options, "epsilon": torch.finfo(self.inputs[0].dtype).eps}
        values = []
        for sequence in range(len(self.inputs[0])):
            real = [self._real(tensor, sequence) for tensor in self.inputs]
            values.append(entry.zero if real[0].shape[-2] == 0 else entry.reference(*real, **options))
        return values

    def _real(self, tensor: Tensor, sequence: int) -> Matrix:
        one = tensor[sequence].double()
        if self.mask is not None:
            keep = self.mask[sequence]
            one = one[:, keep][:, :, keep] if one.ndim == 3 else one[keep]
        return one.numpy()


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attention_maps(logits: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """Softmax over the keys that may be seen, zero for queries that see none."""
    n = logits.shape[-1]
    allowed = torch.ones(n, n, dtype=torch.bool).tril() if causal else torch.ones(n, n, dtype=torch.bool)
    allowed = allowed.expand(logits.shape)
    if mask is not None:
        allowed = allowed & mask[:, None, None, :]
    return logits.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num(0.0)


def inputs_for(metric: Metric, change: Callable[[Tensor], Tensor], n: int = TOKENS, d: int = DIM) -> Case:
    """Random input of the kind that the metric reads, changed by `change` (which sees tokens × features)."""
    if metric.reads == "attention":
        # Logits as inner products of tokens: whatever makes tokens alike makes attention uniform.
        tokens = change(gaussian(BATCH * HEADS, n, d)).unflatten(0, (BATCH, HEADS))
        return Case((attention_maps(tokens @ tokens.mT),))
    if metric.reads == "pair":
        return Case((change(gaussian(BATCH, n, d)), change(gaussian(BATCH, n, d + 2, seed=1))))
    return Case((change(gaussian(BATCH, n, d)),))


def masked(case: Case, mask: Tensor, garbage: float = torch.nan) -> Case:
    """The case with `garbage` at everything that is not real."""
    inputs = []
    for tensor in case.inputs:
        if tensor.ndim == 4:
            hidden = ~(mask[:, None, :, None] & mask[:, None, None, :])
            tensor = attention_maps(tensor.clamp_min(1e-30).log(), mask).to(tensor.dtype)
        else:
            hidden = ~mask.unsqueeze(-1)
        inputs.append(tensor.masked_fill(hidden, garbage))
    return Case(tuple(inputs), mask)


def masks() -> dict[str, Tensor]:
    """Paddings of every kind, each sequence with its own length; some without a token at all."""
    position = torch.arange(TOKENS)
    lengths = torch.tensor([[TOKENS], [5], [1]])
    scattered = torch.rand(BATCH, TOKENS, generator=torch.Generator().manual_seed(4)) < 0.5
    return {
        "right": position < lengths,
        "left": position >= TOKENS - lengths,
        "scattered": scattered,
        "fully_masked": (position < lengths) & torch.tensor([[True], [False], [True]]),
    }


def _zero_tokens(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 1::3] = 0.0
    return x


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "random": lambda x: x,
    "offset": lambda x: x + 5.0,
    "small": lambda x: 1e-6 * x,
    "large": lambda x: 1e4 * x,
    "collapsed": lambda x: (0.1 + x[:, :1]).expand_as(x).contiguous(),
    "near_collapsed": lambda x: x[:, :1] + 1e-4 * x,
    "two_clusters": lambda x: x[:, :2].repeat(1, x.shape[1], 1)[:, : x.shape[1]],
    "rank_one_with_signs": lambda x: x[:, :, :1] * x[:, :1],
    "zero_tokens": _zero_tokens,
    "massive_token": lambda x: x * torch.tensor([1e3] + [1.0] * (x.shape[1] - 1)).unsqueeze(-1),
}


def agreement_cases(metric: Metric) -> dict[str, Case]:
    """All short inputs on which a metric must agree with its reference."""
    cases = {name: inputs_for(metric, change) for name, change in CHANGES.items()}
    cases["fewer_tokens_than_features"] = inputs_for(metric, CHANGES["random"], n=4, d=9)
    cases["two_tokens"] = inputs_for(metric, CHANGES["random"], n=2)
    cases["single_token"] = inputs_for(metric, CHANGES["random"], n=1)
    cases["all_zero"] = Case(tuple(torch.zeros_like(tensor) for tensor in cases["random"].inputs))
    for name, dtype in DTYPES.items():
        cases[name] = Case(tuple(tensor.to(dtype) for tensor in cases["offset"].inputs))
    for name, mask in masks().items():
        cases[f"{name}_padding"] = masked(cases["random"], mask)
        half = Case(tuple(tensor.bfloat16() for tensor in cases["random"].inputs))
        cases[f"{name}_padding_bfloat16"] = masked(half, mask, garbage=torch.inf)
    if metric.reads == "attention":
        logits = gaussian(BATCH, HEADS, TOKENS, TOKENS)
        cases["causal"] = Case((attention_maps(logits, causal=True),))
        left = masks()["left"]
        cases["causal_left_padding"] = Case((attention_maps(logits, left, causal=True),), left)
    return cases
