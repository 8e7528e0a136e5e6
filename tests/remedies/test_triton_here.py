"""Where kernels are launched."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from unsmooth.remedies.head_norm import head_norm
from unsmooth.remedies.triton_here import HAS_TRITON, on_its_device


def test_the_device_of_the_first_tensor_is_current_during_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[Tensor] = []

    class DeviceOf:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

        def __enter__(self) -> None:
            current.append(self.tensor)

        def __exit__(self, *_: Any) -> None:
            current.pop()

    monkeypatch.setattr(torch.cuda, "device_of", DeviceOf)
    first, second = torch.zeros(1), torch.ones(1)
    seen = on_its_device(lambda x, y, *, scale: [*current, scale * y])(first, second, scale=3.0)
    assert seen[0] is first
    assert seen[1].item() == 3.0
    assert not current


class StoppedError(Exception):
    """Before anything runs."""


@pytest.mark.skipif(not HAS_TRITON, reason="no Triton")
@pytest.mark.parametrize("name", ["blend", "head_norm", "mixed_heads", "spreading", "weighing"])
def test_all_kernels_are_launched_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Tensor] = []

    def device_of(tensor: Tensor) -> None:
        asked.append(tensor)
        raise StoppedError

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    kernels = importlib.import_module(f"unsmooth.remedies.{name}_kernels")
    for launch in (kernels.forward, kernels.backward):
        first = torch.zeros(2)
        with pytest.raises(StoppedError):
            launch(first)
        assert asked.pop() is first


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no second CUDA device on this machine")
def test_on_a_gpu_that_is_not_the_current_one() -> None:
    x, gain = torch.randn(2, 3, 5, 16), torch.randn(16)
    torch.cuda.set_device(0)
    found = head_norm(x.to("cuda:1"), gain.to("cuda:1"), 1.0)
    torch.testing.assert_close(found.cpu(), head_norm(x, gain, 1.0))
