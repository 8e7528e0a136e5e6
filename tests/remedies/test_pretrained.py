"""Remedies through transformers' own saving and loading: what is loaded has them, or loading stops."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, load_checkpoint_in_model
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import unsmooth
from tests.remedies.hosts import HOSTS, TestHost
from tests.remedies.settings import SETTINGS
from tests.remedies.test_saving import aligned, trained
from unsmooth import remedies


def hosts_of(name: str) -> list[TestHost]:
    """The models of transformers that can have a remedy in its first setting."""
    refused = next(iter(SETTINGS[name].values())).refused_by
    return [host for host in HOSTS if host.hugging_face and host.name not in refused]


NAMES = [name for name in sorted(SETTINGS) if hosts_of(name)]  # but norm_place, which needs a block that says its style


def remedied(name: str) -> tuple[TestHost, Any]:
    host, setting = hosts_of(name)[0], next(iter(SETTINGS[name].values()))
    return host, trained(unsmooth.apply(host.model(), name, **setting.options))


def said(host: TestHost, model: nn.Module) -> Tensor:
    with torch.no_grad():
        return host.output(aligned(model), host.call(host.inputs()))


def same(host: TestHost, loaded: nn.Module, model: nn.Module) -> None:
    """To the bit: all of the state, outputs, the list of remedies, and what `undo` gives."""
    assert torch.equal(said(host, loaded), said(host, model))
    told = [[(one.name, one.options, one.layers) for one in remedies.applied(each)] for each in (loaded, model)]
    assert told[0] == told[1]
    has_all(loaded, model)
    has_all(unsmooth.undo(copy.deepcopy(loaded)), unsmooth.undo(copy.deepcopy(model)))


def has_all(loaded: nn.Module, model: nn.Module) -> None:
    """What transformers builds may have a pooler more than the tests' own model."""
    found, state = loaded.state_dict(), model.state_dict()
    assert [key for key in state if key not in found or not torch.equal(found[key], state[key])] == []
    assert [key for key in found if key not in state and not key.startswith("pooler.")] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_remedy_comes_back_by_from_pretrained(name: str, tmp_path: Path) -> None:
    host, model = remedied(name)
    model.save_pretrained(tmp_path)
    same(host, type(model).from_pretrained(tmp_path), model)


# The other ways to save, for every remedy.


class Texts(torch.utils.data.Dataset[dict[str, Any]]):
    """Two inputs of a host, each with a number to come near."""

    def __init__(self, host: TestHost) -> None:
        self.host = host

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, Any]:
        call = self.host.call(self.host.inputs())
        return {**{name: value[index] for name, value in call.items()}, "labels": 1.0}


class NearZero(Trainer):
    """Any model has an output that can be made smaller."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
        labels = inputs.pop("labels")
        out = model(**inputs)[0]
        loss = (out.flatten(1).mean(1) - labels).square().mean()
        return (loss, {"out": out}) if return_outputs else loss


def trainer(model: nn.Module, host: TestHost, folder: Path, **options: Any) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        learning_rate=1e-3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["labels"],
        prediction_loss_only=True,
        **options,
    )
    return NearZero(model, arguments, train_dataset=Texts(host), eval_dataset=Texts(host))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_remedy_through_a_trainer(name: str, tmp_path: Path) -> None:
    """Checkpoints are resumed from and loaded, the best of them comes back, and so does what `save_model` wrote."""
    host, model = remedied(name)
    twin = copy.deepcopy(model)
    often = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    run = trainer(model, host, tmp_path, max_steps=2, load_best_model_at_end=True, **often)
    run.train()
    best = Path(run.state.best_model_checkpoint)
    same(host, type(model).from_pretrained(best), model)
    run.save_model(tmp_path / "model")
    same(host, type(model).from_pretrained(tmp_path / "model"), model)
    resumed = trainer(twin, host, tmp_path / "again", max_steps=2, save_strategy="no")
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    last = type(model).from_pretrained(tmp_path / "checkpoint-2").state_dict()
    assert all(torch.equal(value, last[key]) for key, value in twin.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_remedy_through_accelerate(name: str, tmp_path: Path) -> None:
    """`save_model` writes weights alone: into the same remedies they load, and a plain model refuses them."""
    host, model = remedied(name)
    accelerator = Accelerator(cpu=True)
    accelerator.save_model(accelerator.prepare(model), tmp_path)
    setting = next(iter(SETTINGS[name].values()))
    other = unsmooth.apply(host.model(seed=1), name, **setting.options)
    load_checkpoint_in_model(other, str(tmp_path), strict=True)
    assert torch.equal(said(host, other), said(host, model))
    with pytest.raises(RuntimeError, match=r"unsmooth\.applied"):
        load_checkpoint_in_model(host.model(), str(tmp_path), strict=True)
    unwrapped = accelerator.unwrap_model(model)
    unwrapped.save_pretrained(tmp_path / "idiom", state_dict=accelerator.get_state_dict(model))
    same(host, type(unwrapped).from_pretrained(tmp_path / "idiom"), model)
