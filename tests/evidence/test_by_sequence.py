from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unsmooth.evidence.by_sequence import by_sequence
from unsmooth.scanning import scan

DEFINITIONS = ("mean_cosine", "token_similarity", "effective_rank", "stable_rank")


def stack(layers: int = 3, dim: int = 8) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(dim, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


def reference(x_ND: NDArray[np.float64]) -> dict[str, float]:
    """The four definitions straight from their formulas."""
    unit = x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)
    gram, count = unit @ unit.T, len(x_ND)
    singular = np.linalg.svd(x_ND, compute_uv=False)
    share = singular / singular.sum()
    return {
        "mean_cosine": gram[~np.eye(count, dtype=bool)].mean(),
        "token_similarity": count * (x_ND.mean(axis=0) ** 2).sum() / (x_ND**2).sum(),
        "effective_rank": float(np.exp(-(share * np.log(share)).sum())),
        "stable_rank": (singular**2).sum() / singular[0] ** 2,
    }


def streams(model: nn.TransformerEncoder, x_BND: Tensor) -> list[Tensor]:
    found = [x_BND]
    with torch.no_grad():
        for layer in model.layers:
            found.append(layer(found[-1]))
    return found


def test_every_layer_and_sequence_is_what_the_formula_gives() -> None:
    model, x_BND = stack(), torch.randn(5, 7, 8, generator=torch.Generator().manual_seed(1))
    found = by_sequence(model, x_BND, DEFINITIONS, batch_size=2)
    assert found.whole_S.tolist() == [True] * 5
    for layer, stream in enumerate(streams(model, x_BND)):
        for sequence in range(5):
            for name, value in reference(stream[sequence].double().numpy()).items():
                assert float(found.every[name][layer, sequence]) == pytest.approx(value, rel=1e-5, abs=1e-6)


def test_means_are_those_of_a_scan() -> None:
    model, x_BND = stack(), torch.randn(6, 9, 8, generator=torch.Generator().manual_seed(2))
    found, scanned = by_sequence(model, x_BND, DEFINITIONS), scan(model, x_BND, metrics=DEFINITIONS, progress=False)
    for name in DEFINITIONS:
        expected = [row.mean for row in scanned.curve(name)]
        assert found.every[name].mean(dim=1).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_padding_is_not_looked_at() -> None:
    model, x_BND = stack(), torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(3))
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    found = by_sequence(model, {"src": x_BND, "src_key_padding_mask": padding}, DEFINITIONS)
    for name, value in reference(x_BND[1, :4].double().numpy()).items():
        assert float(found.every[name][0, 1]) == pytest.approx(value, rel=1e-5)


def test_a_massive_token_is_left_out_of_all_layers() -> None:
    """The first token grows in one layer and shrinks in the next: massive in between, and looked at nowhere."""
    model, x_BND = stack(), torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(4))
    scale_first(model.layers[1], 1e3)
    scale_first(model.layers[2], 1e-3)
    found = by_sequence(model, x_BND, DEFINITIONS)
    assert found.massive_S.tolist() == [1]
    for layer, stream in enumerate(streams(model, x_BND)):
        for name, value in reference(stream[0, 1:].double().numpy()).items():
            assert float(found.ordinary[name][layer, 0]) == pytest.approx(value, rel=1e-5, abs=1e-6)
    assert float(found.every["token_similarity"][2, 0]) == pytest.approx(1 / 6, rel=0.05)


def scale_first(layer: nn.Module, factor: float) -> None:
    def scaled(module: nn.Module, args: object, output: Tensor) -> Tensor:
        return torch.cat([factor * output[:, :1], output[:, 1:]], dim=1)

    layer.register_forward_hook(scaled)


def test_a_sequence_of_one_token_has_no_value() -> None:
    model, x_BND = stack(), torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(5))
    padding = torch.tensor([[False] * 4, [False, True, True, True]])
    found = by_sequence(model, {"src": x_BND, "src_key_padding_mask": padding}, DEFINITIONS)
    assert found.whole_S.tolist() == [True, False]
