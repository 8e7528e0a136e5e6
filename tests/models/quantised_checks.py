"""Models that torchao and bitsandbytes have quantised. Run by test_quantised.py, where both can be imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unsmooth
from tests.models import test_hosts as hosts
from tests.models.entries import ENTRIES
from tests.models.entry import Entry
from tests.models.rebuilding import largest_error
from unsmooth.models import value_projection, weight_hash

ENTRY = next(entry for entry in ENTRIES if entry.name == "llama-grouped")


def of_torchao(folder: Path) -> Any:
    """Weights alone in 8 bits."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = ENTRY.model()
    quantize_(model, Int8WeightOnlyConfig())
    return model


def of_bitsandbytes(folder: Path) -> Any:
    """LLM.int8(): what a map reads is rounded as well. Through transformers, as users do."""
    from transformers import AutoModel, BitsAndBytesConfig

    ENTRY.model().save_pretrained(folder)
    options = {"quantization_config": BitsAndBytesConfig(load_in_8bit=True), "device_map": "cpu"}
    return AutoModel.from_pretrained(folder, **options).eval()


def whole_torchao(module: Any) -> Any:
    weight = module.weight
    return weight.qdata.double().numpy() * weight.scale.double().numpy().reshape(-1, 1)


def whole_bitsandbytes(module: Any) -> Any:
    place = module.state if module.state.CB is not None else module.weight
    return place.CB.double().numpy() * place.SCB.double().numpy()[:, None] / 127


@pytest.mark.parametrize(
    ("make", "whole", "off"),
    [(of_torchao, whole_torchao, 1e-5), (of_bitsandbytes, whole_bitsandbytes, 5e-2)],
    ids=["torchao", "bitsandbytes"],
)
def test_scanned_and_explained(make: Any, whole: Any, off: float, tmp_path: Path) -> None:
    model, batch = make(tmp_path), ENTRY.batch("right")
    before, plain = weight_hash(model), weight_hash(ENTRY.model())
    check_values(model, whole)  # before the model first runs, and below after
    ours, theirs = hosts.observe(model, batch), hosts.observe_by_hand(ENTRY, model, batch)
    assert set(ours) == set(theirs)
    for place, tensor in theirs.items():
        hosts.assert_close(
            hosts.at_real_tokens(ours[place], "right"), hosts.at_real_tokens(tensor, "right"), str(place)
        )
    check_values(model, whole)
    assert largest_error(ENTRY, model, "right") < off
    found = unsmooth.scan(model, batch, metrics=["mean_cosine"], progress=False, baseline=True)
    assert before == found.manifest["model"]["weights_sha256"] == weight_hash(model) != plain
    check_beside_float(ENTRY, found)
    why = unsmooth.explain(model, batch, jacobian=False, progress=False)
    assert why.notes == ()
    assert all(layer.rebuilt is not None and layer.rebuilt < off for layer in why.layers)


def check_values(model: Any, whole: Any) -> None:
    found = value_projection(model, 1)
    wanted = whole(model.layers[1].self_attn.v_proj)
    np.testing.assert_allclose(found.w_v[0].numpy(), wanted[:8].T, rtol=1e-5)
    np.testing.assert_allclose(found.w_v[3].numpy(), wanted[8:].T, rtol=1e-5)


def check_beside_float(entry: Entry, found: Any) -> None:
    """Near the numbers of the float model but not them; the random weights beside it are floats, and its very own."""
    whole = unsmooth.scan(entry.model(), entry.batch("right"), metrics=["mean_cosine"], progress=False, baseline=True)
    difference = np.abs(found.to_frame()["mean"] - whole.to_frame()["mean"]).max()
    assert 1e-6 < difference < 0.05
    torch.testing.assert_close(
        torch.tensor(found.baseline.to_frame()["mean"].to_numpy()),
        torch.tensor(whole.baseline.to_frame()["mean"].to_numpy()),
    )
