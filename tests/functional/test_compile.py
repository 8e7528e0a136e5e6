"""torch.compile traces every metric in one graph and changes no number."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.functional.cases import BATCH, CHANGES, PER_SEQUENCE, TOKENS, gaussian, inputs_for, masked, masks
from unsmooth.functional import METRICS, Tokens


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("name", PER_SEQUENCE)
def test_compiles_in_one_graph(name: str) -> None:
    case = masked(inputs_for(METRICS[name], CHANGES["random"]), masks()["right"])
    compiled = torch.compile(METRICS[name].function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*case.inputs, case.mask), case.measure(METRICS[name]))


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler for inductor")
def test_default_set_compiles_to_native_code() -> None:
    """What a scan asks for: all default metrics from one `Tokens`, as one graph."""

    def default_set(x: Tensor, mask: Tensor) -> list[Tensor]:
        tokens = Tokens(x, mask)
        return [metric.function(tokens) for metric in METRICS.values() if metric.default]

    x, mask = gaussian(BATCH, TOKENS, 7), masks()["left"]
    got = torch.compile(default_set, fullgraph=True)(x, mask)
    for value, want in zip(got, default_set(x, mask), strict=True):
        torch.testing.assert_close(value, want, rtol=1e-5, atol=1e-5)
