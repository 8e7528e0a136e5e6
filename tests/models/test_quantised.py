"""Weights in 8 bits: of torchao and bitsandbytes in a process of their own, and of look-alikes here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.apart import PATIENCE, run_checks
from unsmooth.errors import UnsmoothError
from unsmooth.models import value_projection, weight_hash
from unsmooth.models.stored import is_quantised, stored


@pytest.mark.timeout(PATIENCE + 60)
def test_with_torchao_and_bitsandbytes() -> None:
    run_checks("quantised", "torchao", "tests/models/quantised_checks.py")


class Linear8bitLt(nn.Linear):
    """Keeps numbers and scales where bitsandbytes does: in the weight, and once it has run, in `state`."""

    def quantise(self) -> Linear8bitLt:
        scales = self.weight.detach().abs().amax(dim=1)
        numbers = (self.weight.detach() / scales[:, None] * 127).round().to(torch.int8)
        self.weight = nn.Parameter(numbers, requires_grad=False)
        self.weight.CB, self.weight.SCB = numbers, scales  # type: ignore[attr-defined]
        return self

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, stored(self, "weight"), self.bias)


def quantised_encoder() -> nn.Module:
    from tests.models.entries import ENTRIES

    model: nn.Module = next(entry for entry in ENTRIES if entry.name == "bert-tiny").model()
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            small = Linear8bitLt(module.in_features, module.out_features)
            small.load_state_dict(module.state_dict())
            model.set_submodule(path, small.quantise())
    return model


def test_rows_are_scaled_back() -> None:
    layer = Linear8bitLt(5, 3)
    numbers = layer.weight.detach().double().numpy()
    layer.quantise()
    assert is_quantised(nn.Sequential(layer))
    steps = np.abs(numbers).max(axis=1, keepdims=True) / 127
    assert np.all(np.abs(stored(layer, "weight").double().numpy() - numbers) <= 0.5001 * steps)


def test_weights_of_a_quantised_model_are_read() -> None:
    model = quantised_encoder()
    before = weight_hash(model)
    value = model.get_submodule("encoder.layer.1.attention.self.value")
    wanted = value.weight.CB.numpy().astype(np.float64) * (value.weight.SCB.numpy()[:, None] / 127)  # type: ignore
    found = value_projection(model, 1)
    np.testing.assert_allclose(found.w_v.flatten(1).numpy(), wanted.reshape(2, 8, 16).swapaxes(1, 2).reshape(2, -1))
    assert weight_hash(model) == before


def test_int8_without_scales_is_refused() -> None:
    model = quantised_encoder()
    layer = model.get_submodule("encoder.layer.0.attention.self.value")
    del layer.weight.SCB
    with pytest.raises(UnsmoothError, match=r"float weights at .attention.self.value.*int8, which is quantised"):
        value_projection(model, 0)
