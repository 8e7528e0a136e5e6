"""Metrics on whatever a tensor can be, against references in float64 and against what they declare about themselves."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.functional.references import ENTRIES
from tests.fuzz.outcome import Outcome
from unsmooth.errors import UnsmoothError
from unsmooth.functional import METRICS, Metric, Tokens
from unsmooth.functional._blocks import Workspace, blocks, joined, light_tokens, measure, reading_of

_NAMES = [name for name, metric in METRICS.items() if metric.reads in ("tokens", "pair", "attention")]
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Near collapse these keep their digits relative to themselves, not to 1.
_RELATIVE = ("token_diversity", "rank_one_residual", "hfc_lfc", "mean_distance", "dirichlet_energy")
# Where a singular value is as large as a threshold, rounding decides on which side it is.
_STEPS = {"numerical_rank": 1.0, "singular_skewness": 1e-3}


def run(seed: int, seconds: float, tries: int | None = None, first: bool = False) -> Outcome:
    """Try metrics on random input."""
    source, outcome, end = np.random.default_rng(seed), Outcome(), time.monotonic() + seconds
    while time.monotonic() < end if tries is None else outcome.tries < tries:
        number = int(source.integers(2**31))
        outcome.tries += 1
        found = _try_bad(number) if number % 5 == 0 else _try(number, outcome)
        outcome.findings += [f"functionals {number}: {found}"] if found else []
        if first and outcome.findings:
            break
    return outcome


def _try(number: int, outcome: Outcome) -> str | None:
    """One metric on input that it must take; what is wrong with the outcome, if anything is."""
    source = np.random.default_rng(number)
    name = str(source.choice(_NAMES))
    metric, options = METRICS[name], dict(source.choice(np.array(ENTRIES[name].options, dtype=object)))
    inputs, mask = _inputs(source, metric)
    what = f"{name}({options}) of {[(tuple(x.shape), x.dtype) for x in inputs]}, mask {mask is not None}"
    try:
        got = metric.function(*inputs, mask, **options)
    except Exception as problem:
        return f"{what}: {type(problem).__name__}: {str(problem)[:120]}"
    outcome.past += 1
    dtype = torch.promote_types(inputs[0].dtype, torch.float32)
    if got.shape != inputs[0].shape[:1] or got.dtype != dtype:
        return f"{what}: gave {tuple(got.shape)} of {got.dtype}"
    for sequence, value in enumerate(got.tolist()):
        real = [_real(tensor[sequence], None if mask is None else mask[sequence]) for tensor in inputs]
        if not all(np.isfinite(one).all() for one in real):
            if np.isfinite(value):
                return f"{what}: {value} of tokens that are not finite"
            continue
        want = _reference(name, real, inputs[0].dtype, options)
        if want is not None and not _agrees(name, value, want, dtype):
            return f"{what}[{sequence}]: {value} against {want}"
    return _as_scanned(metric, options, inputs[0], mask, got, what) or _declared(
        metric, options, inputs, mask, got, source, what
    )


def _as_scanned(
    metric: Metric, options: dict[str, Any], x: Tensor, mask: Tensor | None, got: Tensor, what: str
) -> str | None:
    """Whether a scan, which takes sums of blocks of sequences, comes to the same."""
    if metric.reads != "tokens" or options or not len(x) or (reading := reading_of(metric.function)).vectors:
        return None
    tokens = Tokens(x, mask)
    sums = joined([measure(block, reading.sums | {"norms_BN"}) for block in blocks(tokens, Workspace())])
    light = light_tokens({"count_B": tokens.count_B, **sums}, x.shape, sums["norms_BN"].dtype)
    wide = 100.0 if metric.name in _RELATIVE else 1.0  # these are promised to 1e-3
    for a, b in zip(got.tolist(), metric.function(light).tolist(), strict=True):
        beyond = np.isinf(a) and b > 3.4e38  # of its sums in float64 a scan tells what float32 cannot
        if (np.isfinite(a) or np.isfinite(b)) and not beyond and not _agrees(metric.name, b, a, got.dtype, wide):
            return f"{what}: {a}, but {b} in a scan"
    return None


def _inputs(source: np.random.Generator, metric: Metric) -> tuple[list[Tensor], Tensor | None]:
    """Tensors of any type and layout, and a mask or none."""
    batch, n = int(source.choice([0, 1, 3])), int(source.choice([1, 2, 3, 9, 33]))
    dims = [int(source.choice([1, 2, 7, 40])) for _ in range(2 if metric.reads == "pair" else 1)]
    dtype = _DTYPES[int(source.integers(len(_DTYPES)))]
    mask = (
        torch.from_numpy(source.random((batch, n)) < source.choice([0.1, 0.7, 1.0])) if source.random() < 0.5 else None
    )
    if metric.reads == "attention":
        logits = source.normal(size=(batch, int(source.choice([1, 2, 5])), n, n)) * source.choice([0.0, 1.0, 30.0])
        keys = np.ones(n, bool) if mask is None else mask.numpy()[:, None, None, :]
        weights = np.where(keys, np.exp(logits - logits.max(axis=-1, keepdims=True, initial=-np.inf)), 0.0)
        total = weights.sum(axis=-1, keepdims=True)
        values = [np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)]
    else:
        values = [_tokens(source, (batch, n, dim)) for dim in dims]
    tensors = [_laid_out(torch.from_numpy(value).to(dtype), source) for value in values]
    if mask is not None:  # what is there is never read
        garbage = float(source.choice([np.nan, np.inf, 0.0, 1e4]))
        real = (mask[:, None, :, None] & mask[:, None, None]) if metric.reads == "attention" else mask.unsqueeze(-1)
        tensors = [tensor.masked_fill(~real, garbage) for tensor in tensors]
    return tensors, mask


def _tokens(source: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    common = source.normal(size=(shape[0], 1, shape[2])) * source.choice([0.0, 1.0])
    x = common + source.normal(size=shape) * 10.0 ** float(source.choice([0, 0, -1, -3, -6]))
    kind = source.integers(8)
    if x.size and kind < 3:
        place = tuple(int(source.integers(size)) for size in shape[:2])
        x[place] = (0.0, x[place] * 1e-25, x[place] * 1e3)[kind]
    x *= 10.0 ** float(source.choice([0, 0, 0, 4, -6, -20, 20, -38, 37]))
    if x.size and kind == 3:
        x[tuple(int(source.integers(size)) for size in shape)] = source.choice([np.nan, np.inf, -np.inf])
    return x


def _laid_out(tensor: Tensor, source: np.random.Generator) -> Tensor:
    """The same numbers, elsewhere in memory."""
    kind = source.integers(5)
    if kind == 0:
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == 1:
        return tensor.repeat_interleave(2, dim=-1)[..., ::2]
    if kind == 2:
        return torch.cat([tensor, tensor], dim=1)[:, : tensor.shape[1]]
    if kind == 3:
        return tensor[:1].expand_as(tensor) if len(tensor) else tensor
    return tensor


def _real(one: Tensor, mask: Tensor | None) -> np.ndarray:
    keep = slice(None) if mask is None else mask
    one = one.double()[:, keep][..., keep] if one.ndim == 3 else one.double()[keep]
    return one.numpy()


def _reference(name: str, real: list[np.ndarray], dtype: torch.dtype, options: dict[str, Any]) -> float | None:
    """What the value should be; None where the reference is 0/0, as a covariance of one feature can be."""
    entry = ENTRIES[name]
    if real[0].shape[-2] == 0:
        return entry.zero
    if "epsilon" in inspect.signature(entry.reference).parameters:
        options = {**options, "epsilon": torch.finfo(dtype).eps}
    try:
        with np.errstate(all="ignore"):
            return float(entry.reference(*real, **options))
    except (ArithmeticError, np.linalg.LinAlgError):
        return None


def _agrees(name: str, value: float, want: float, dtype: torch.dtype, wide: float = 1.0) -> bool:
    if dtype == torch.float32 and abs(want) > 3.4e38:
        return np.isinf(value)
    if np.isnan(want) or np.isinf(want):
        return not np.isfinite(value)
    # What is left of float32 numbers below the least normal one has few digits.
    size = abs(want) if name in _RELATIVE else max(1.0, abs(want))
    return abs(value - want) <= max(wide * _STEPS.get(name, 1e-5) * size, 1e-14 if name in _RELATIVE else 0.0, 1e-38)


def _declared(
    metric: Metric,
    options: dict[str, Any],
    inputs: list[Tensor],
    mask: Tensor | None,
    got: Tensor,
    source: Any,
    what: str,
) -> str | None:
    """Whether an exact change that the metric declares not to see leaves the value."""
    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "scale": lambda x: x * 2.0**3, "reflection": lambda x: -x, "permutation": lambda x: x.flip(1)
    }  # fmt: skip
    known = sorted(metric.invariances.intersection(changes))
    if not known:
        return None
    kind = str(source.choice(known))
    changed = [changes[kind](tensor) for tensor in inputs]
    if kind == "scale" and not all(torch.equal(a / 2.0**3, b) for a, b in zip(changed, inputs, strict=True)):
        return None  # beyond what the type can hold
    again = metric.function(*changed, mask.flip(1) if mask is not None and kind == "permutation" else mask, **options)
    same = [
        not (np.isfinite(a) or np.isfinite(b)) or _agrees(metric.name, b, a, got.dtype)
        for a, b in zip(got.tolist(), again.tolist(), strict=True)
    ]
    return None if all(same) else f"{what}: {got.tolist()}, but {again.tolist()} after {kind}"


def _try_bad(number: int) -> str | None:
    """One metric on what it must refuse, in one sentence."""
    source = np.random.default_rng(number)
    name = str(source.choice(_NAMES))
    metric = METRICS[name]
    inputs, mask = _inputs(source, metric)
    good = inputs[0]
    kinds: list[tuple[Any, Any]] = [
        (good.flatten(), mask), (good[0] if len(good) else good[None, ..., None, None], None), (good.long(), None),
        (good[:, :0] if good.ndim == 3 else good[..., :0], None), (good.tolist(), None), (None, None),
        (good, torch.ones(good.shape[0], good.shape[-2] + 1, dtype=torch.bool)), (good, [True]),
        (good, torch.ones(good.shape[0], good.shape[-2])), (good.bool(), None), (good.to(torch.complex64), None),
    ]  # fmt: skip
    kind = int(source.integers(len(kinds)))
    x, mask = kinds[kind]
    try:
        metric.function(x, *inputs[1:], mask)
    except UnsmoothError as problem:
        return None if "\n" not in str(problem) else f"{name}, bad input {kind}: several lines"
    except Exception as problem:
        return f"{name}, bad input {kind}: {type(problem).__name__}: {str(problem)[:120]}"
    return f"{name}, bad input {kind}: taken"
