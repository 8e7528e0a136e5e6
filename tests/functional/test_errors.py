"""What users see when they hand in the wrong thing: expected, got, try."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.functional.cases import PER_SEQUENCE, gaussian, inputs_for, metrics_reading
from unsmooth import functional as uf
from unsmooth.errors import UnsmoothError
from unsmooth.functional import METRICS, Tokens, parse_metric

X = gaussian(2, 4, 3)
MASK = torch.ones(2, 4, dtype=torch.bool)
BAD_TOKENS: list[tuple[tuple[Tensor, Tensor | None], str]] = [
    ((X[0], None), r"Expected `x` of shape \(batch, tokens, dim\) but got \(4, 3\). Try x.unsqueeze\(0\)"),
    ((X.long(), None), "Expected `x` of a floating type but got torch.int64. Try x.float"),
    ((X[:, :0], None), r"Expected `x` with at least one token and one dimension but got \(2, 0, 3\)"),
    ((X, MASK.long()), r"Expected a boolean `mask` \(True = a real token\) but got torch.int64. Try mask.bool"),
    ((X, MASK[:, :3]), r"Expected `mask` of shape \(2, 4\) but got \(2, 3\). Try one entry per token"),
]
A = torch.full((2, 3, 4, 4), 0.25)
BAD_ATTENTION: list[tuple[tuple[Tensor, Tensor | None], str]] = [
    ((A[0], None), r"Expected `attention` of shape \(batch, heads, n, n\) but got \(3, 4, 4\)"),
    ((A[..., :3], None), r"Expected `attention` of shape \(batch, heads, n, n\) but got \(2, 3, 4, 3\)"),
    ((A.long(), None), "Expected `attention` of a floating type but got torch.int64"),
    ((A[:, :0], None), "Expected `attention` with at least one head and one token"),
    ((A, MASK.long()), "Expected a boolean `mask`"),
    ((A, MASK[:, :3]), r"Expected `mask` of shape \(2, 4\) but got \(2, 3\)"),
]


@pytest.mark.parametrize("name", metrics_reading("tokens", "pair"))
@pytest.mark.parametrize(("arguments", "message"), BAD_TOKENS)
def test_bad_tokens(name: str, arguments: tuple[Tensor, Tensor | None], message: str) -> None:
    x, mask = arguments
    inputs = (x, x) if METRICS[name].reads == "pair" else (x,)
    with pytest.raises(UnsmoothError, match=message):
        METRICS[name].function(*inputs, mask)


@pytest.mark.parametrize("name", metrics_reading("attention"))
@pytest.mark.parametrize(("arguments", "message"), BAD_ATTENTION)
def test_bad_attention(name: str, arguments: tuple[Tensor, Tensor | None], message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        METRICS[name].function(*arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: uf.mean_cosine([1.0]), "Expected `x` of shape .* but got list"),
        (lambda: uf.mean_cosine(X, MASK.tolist()), "Expected a boolean `mask` .* but got list. Try torch.tensor"),
        (lambda: uf.mean_cosine(Tokens(X), MASK), "Expected no mask beside a Tokens"),
        (lambda: uf.linear_cka(X, X[:, :3]), r"Expected `y` over the same \(batch, tokens\) = \(2, 4\) as `x`"),
        (
            lambda: uf.rank_one_residual(X, norm="spectral"),
            "Expected norm as one of composite, frobenius but got 'spectral'. Try norm='composite'",
        ),
        (
            lambda: uf.numerical_rank(X, tolerance=1.0),
            "Expected tolerance of at least 0.0 and below 1.0, or None but got 1.0",
        ),
        (lambda: uf.numerical_rank(X, tolerance=-0.1), "Expected tolerance of at least 0.0 .* but got -0.1"),
        (lambda: parse_metric("mean_cosin"), "Did you mean 'mean_cosine'"),
        (
            lambda: parse_metric("mean_cosine(squared=True)"),
            "a known option of mean_cosine but got 'squared'. Known: absolute, with_self",
        ),
        (lambda: parse_metric("hfc_lfc(a=1)"), "no options of hfc_lfc"),
        (lambda: parse_metric("mean_cosine("), "Expected a metric such as"),
        (lambda: parse_metric("mean_cosine(True)"), "Expected a metric such as"),
        (lambda: parse_metric("mean_cosine(absolute=x)"), "Expected absolute as True or False but got 'x'"),
    ],
)
def test_bad_calls(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        call()


def test_parsed_metric_carries_its_options() -> None:
    bound = parse_metric("mean_cosine(with_self=True, absolute=True)")
    assert bound.name == "mean_cosine(absolute=True, with_self=True)"
    assert bound.definition.endswith("; with absolute=True, with_self=True")
    torch.testing.assert_close(bound(X), uf.mean_cosine(X, absolute=True, with_self=True))
    assert parse_metric("hfc_lfc").name == "hfc_lfc"


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_explains_itself(name: str) -> None:
    metric = METRICS[name]
    assert getattr(uf, name) is metric.function
    assert name in uf.__all__
    assert all((metric.definition, metric.paper, metric.cost, metric.chance_note, metric.degenerate))
    documentation = metric.function.__doc__ or ""
    assert all(part in documentation for part in (".. math::", "Args:", "Returns:", "Example:", ">>> "))


def test_default_set_is_cheap() -> None:
    default = [metric for metric in METRICS.values() if metric.default]
    assert {metric.name for metric in default} == {
        "mean_cosine",
        "token_similarity",
        "token_diversity",
        "hfc_lfc",
        "rank_one_residual",
        "dirichlet_energy",
    }
    assert all(metric.cost.startswith("O(nd)") and metric.reads == "tokens" for metric in default)


@pytest.mark.parametrize("name", [name for name in PER_SEQUENCE if METRICS[name].cost.startswith("O(nd)")])
def test_a_cheap_metric_builds_nothing_larger_than_its_input(name: str) -> None:
    """A metric that declares O(nd) makes no n×n matrix on the way."""
    sizes: list[int] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                sizes.append(out.numel())
            return out

    case = inputs_for(METRICS[name], lambda x: x, n=200, d=3)
    with Recorder():
        case.measure(METRICS[name])
    assert max(sizes) <= max(tensor.numel() for tensor in case.inputs)
