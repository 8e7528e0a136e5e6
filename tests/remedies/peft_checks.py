"""Remedies and PEFT: run by `test_peft.py` in a process that can import it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertModel

import unsmooth
from tests.remedies.test_pretrained import IDS, NAMES, hosts_of, small
from tests.remedies.test_saving import aligned
from unsmooth import UnsmoothError, remedies

peft = pytest.importorskip("peft")

TAKEN = [name for name in NAMES if hosts_of(name)[0].name == "bert"]
# The value weights that adapters are merged into are read through something else there, so that a product is not a sum.
REREAD = ("sharpen", "smooth", "sigma_reparam")
# They edit values or heads where adapters would sit, and refuse what is put in their place.
AT_VALUES = ("attnscale", "centred", "laplacian", "neutreno", "shaped", "value_residual", "value_skipinit")


def base() -> Any:
    return small().bert


def lora(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return peft.LoraConfig(target_modules=["query", "value"], r=4, init_lora_weights=False)


def said(model: Any) -> Tensor:
    with torch.no_grad():
        return aligned(model)(IDS)[0]


@pytest.mark.parametrize("name", TAKEN)
def test_a_remedy_and_then_adapters(name: str, tmp_path: Path) -> None:
    """They work, and come back together: the base by its own folder, the adapters by theirs."""
    unsmooth.apply(base(), name).save_pretrained(tmp_path / "base")
    model = peft.get_peft_model(BertModel.from_pretrained(tmp_path / "base"), lora())
    if name in AT_VALUES:
        with pytest.raises(UnsmoothError, match=r"remedies were applied to .* unsmooth\.apply once it is merged"):
            said(model)
        return
    expected = said(model)
    model.save_pretrained(tmp_path / "adapters")
    loaded = peft.AutoPeftModel.from_pretrained(tmp_path / "adapters")
    assert torch.equal(said(loaded), expected)
    assert [one.name for one in remedies.applied(loaded)] == [name]
    with pytest.raises(
        UnsmoothError, match=rf"a base with the remedies of these adapters \({name}\) but got others \(none"
    ):
        peft.PeftModel.from_pretrained(base(), tmp_path / "adapters")
    if name not in REREAD:
        merged = loaded.merge_and_unload()
        torch.testing.assert_close(said(merged), expected, rtol=1e-4, atol=1e-4)
        merged.save_pretrained(tmp_path / "merged")
        assert torch.equal(said(BertModel.from_pretrained(tmp_path / "merged")), said(merged))


def test_adapters_inside_a_model_of_transformers(tmp_path: Path) -> None:
    model = unsmooth.apply(base(), "deescalate", tau=0.5)
    model.add_adapter(lora())
    model.save_pretrained(tmp_path)
    assert not (tmp_path / "config.json").exists()
    again = unsmooth.apply(base(), "deescalate", tau=0.5)
    again.load_adapter(str(tmp_path))
    assert torch.equal(said(again), said(model))
    for other in (base(), unsmooth.apply(base(), "deescalate", tau=0.25)):
        with pytest.raises(UnsmoothError, match="a base with the remedies of these adapters"):
            other.load_adapter(str(tmp_path))


def test_weights_of_adapters_that_are_there_already(tmp_path: Path) -> None:
    """As a Trainer loads them that resumes."""
    peft.get_peft_model(unsmooth.apply(base(), "deescalate", tau=0.5), lora()).save_pretrained(tmp_path)
    peft.get_peft_model(unsmooth.apply(base(), "deescalate", tau=0.5), lora()).load_adapter(str(tmp_path), "default")
    for other, got in (
        (base(), r"others \(none\)"),
        (unsmooth.apply(base(), "deescalate"), "the same with other options"),
    ):
        with pytest.raises(UnsmoothError, match=f"a base with the remedies of these adapters .* but got {got}"):
            peft.get_peft_model(other, lora()).load_adapter(str(tmp_path), "default")


def test_adapters_and_then_a_remedy() -> None:
    model = peft.get_peft_model(base(), lora())
    for each in (model, model.get_base_model()):
        with pytest.raises(UnsmoothError, match=r"without adapters yet .* Try unsmooth\.apply before the adapters"):
            unsmooth.apply(each, "deescalate")
    merged = unsmooth.apply(model.merge_and_unload(), "deescalate")
    assert [one.name for one in remedies.applied(merged)] == ["deescalate"]


def test_adapters_of_a_plain_base_stay_as_peft_writes_them(tmp_path: Path) -> None:
    base().save_pretrained(tmp_path / "base")
    model = peft.get_peft_model(BertModel.from_pretrained(tmp_path / "base"), lora())
    model.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "adapter_config.json").read_text())
    assert content["peft_type"] == "LORA"
    assert content["auto_mapping"].keys() == {"base_model_class", "parent_library"}
    assert torch.equal(said(peft.PeftModel.from_pretrained(base(), tmp_path)), said(model))
    unsmooth.apply(base(), "deescalate").save_pretrained(tmp_path / "other")
    remedied = peft.get_peft_model(BertModel.from_pretrained(tmp_path / "other"), lora())
    remedied.save_pretrained(tmp_path / "remedied")
    loaded = peft.AutoPeftModel.from_pretrained(tmp_path / "remedied")
    unsmooth.undo(loaded)
    loaded.save_pretrained(tmp_path / "undone")
    assert "unsmooth" not in (tmp_path / "undone" / "adapter_config.json").read_text().lower().replace("/unsmooth", "")


WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, *rest):
        if name.split(".")[0] == "unsmooth":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
from peft import PeftModel
from transformers import BertConfig, BertModel
base = BertModel(BertConfig(vocab_size=22, hidden_size=32, num_hidden_layers=3, num_attention_heads=4))
try:
    PeftModel.from_pretrained(base, sys.argv[1])
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_process_without_unsmooth(tmp_path: Path) -> None:
    peft.get_peft_model(unsmooth.apply(base(), "deescalate"), lora()).save_pretrained(tmp_path)
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["KeyError 'UNSMOOTH_LORA'"]
