"""What is refused, and what the message says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from unsmooth.errors import UnsmoothError
from unsmooth.theory import iterate, modes, predict
from unsmooth.theory.maps import drawn, uniform_attention

GOOD: dict[str, Any] = {"x_ND": drawn(4, 3, seed=0), "attention": uniform_attention(4), "h": torch.eye(3), "depth": 2}
NAN = torch.full((4, 3), torch.nan)
NEGATIVE = torch.eye(4) * 2.0 - uniform_attention(4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_ND": torch.ones(1, 3)}, "at least two tokens but got one"),
        ({"x_ND": torch.ones(2, 4, 3)}, r"shape \(n, d\) but got shape \(2, 4, 3\)"),
        ({"x_ND": NAN}, "finite tokens x but got NaN or Inf"),
        ({"x_ND": torch.zeros(4, 3)}, "not all zero"),
        ({"x_ND": torch.ones(4, 3, dtype=torch.int64)}, "real floating type but got torch.int64"),
        ({"x_ND": [[1.0]]}, "as a tensor but got list"),
        ({"attention": torch.ones(4, 5) / 5}, "square attention but got shape .*cross-attention"),
        ({"attention": torch.ones(1, 1)}, "at least two tokens"),
        ({"attention": torch.ones(4)}, r"\(n, n\) or \(heads, n, n\)"),
        ({"attention": torch.ones(4, 4)}, "rows that sum to one but got a row that sums to 4"),
        ({"attention": NEGATIVE}, "without negative entries but got -0.25"),
        ({"attention": uniform_attention(5)}, "over the 4 tokens of x but got one over 5"),
        ({"attention": uniform_attention(4) * torch.nan}, "finite attention"),
        ({"attention": [uniform_attention(4)] * 3}, "2 entries in attention, one per layer but got 3"),
        ({"attention": 3}, "a tensor, a sequence or a function of the layer but got int"),
        ({"attention": lambda layer: torch.ones(4, 4)}, "rows that sum to one"),
        ({"attention": uniform_attention(4).expand(2, 4, 4)}, "as many attention maps as weights h but got 2 and 1"),
        ({"h": torch.ones(3, 2)}, r"\(d, d\) or \(heads, d, d\) but got shape \(3, 2\)"),
        ({"h": torch.eye(5)}, "for the 3 dimensions of x but got for 5"),
        ({"h": torch.eye(3) * torch.inf}, "finite weights h"),
        ({"h": torch.eye(3) * 1j}, "real floating type"),
        ({"depth": -1}, "depth of 0 or more"),
        ({"norm": "sandwich"}, "norm None, 'pre' or 'post' but got 'sandwich'"),
        ({"norm": "pre", "norm_kind": "batch"}, "'layer' or 'rms' but got 'batch'"),
        ({"norm_weight": torch.ones(3)}, "together with a norm"),
        ({"norm": "pre", "norm_weight": torch.ones(4)}, r"norm_weight of shape \(3,\) but got shape \(4,\)"),
        ({"attention": torch.eye(4), "h": -torch.eye(3)}, "does not vanish but got only zeros after layer 1"),
        (
            {"h": 1e200 * torch.eye(3, dtype=torch.float64), "normalise": False},
            "stays finite but got an overflow at layer 2",
        ),
    ],
)
def test_iterate_refuses(change: dict[str, Any], message: str) -> None:
    arguments = GOOD | change
    with pytest.raises(UnsmoothError, match=message):
        iterate(arguments.pop("x_ND"), arguments.pop("attention"), arguments.pop("h"), **arguments)


@pytest.mark.parametrize("function", [predict, modes])
@pytest.mark.parametrize(
    ("attention", "h", "message"),
    [
        (torch.ones(4, 5) / 5, torch.eye(3), "square attention"),
        (torch.ones(4, 4), torch.eye(3), "sum to one"),
        (torch.ones(1, 1), torch.eye(3), "at least two tokens"),
        (uniform_attention(4), torch.ones(3, 2), r"weights h of shape"),
        (uniform_attention(4), torch.eye(3) * torch.nan, "finite weights h"),
        (uniform_attention(4), torch.eye(3).expand(2, 3, 3), "as many attention maps as weights h but got 1 and 2"),
    ],
)
def test_spectra_refuse(function: Any, attention: torch.Tensor, h: torch.Tensor, message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        function(attention, h)


def test_single_precision_rows_are_made_to_sum_to_one() -> None:
    attention = torch.softmax(5.0 * drawn(50, 50, seed=1).float(), dim=-1)
    assert predict(attention, 0.5 * torch.eye(2)).mean_modulus == pytest.approx(1.5, abs=1e-12)
    run = iterate(torch.ones(50, 2), attention, torch.eye(2), depth=100)
    assert run.token_similarity[-1].item() == pytest.approx(1.0, abs=1e-12)
