from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training.tiny_runs import tiny
from unsmooth.networks.config import ViTConfig
from unsmooth.networks.vit import ViT
from unsmooth.training import LossNotFiniteError, resume, train
from unsmooth.training.anomaly import find_origin
from unsmooth.training.checkpoint import Checkpoints
from unsmooth.training.folder import RunFolder
from unsmooth.training.place import Place
from unsmooth.training.run import Run
from unsmooth.training.tasks import ImageTask


def vit() -> ViT:
    return ViT(ViTConfig(image=8, patch=4, classes=4, depth=3, dim=8, heads=2, hidden=16)).train()


def origin(model: nn.Module) -> str | None:
    return find_origin(model, lambda: model(torch.ones(2, 3, 8, 8)).square().mean())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize(
    ("path", "kind"), [("attention.qkv", "Linear"), ("mlp.down", "Linear"), ("norm_mlp", "LayerNorm")]
)
def test_the_layer_is_named(value: float, layer: int, path: str, kind: str) -> None:
    model = vit()
    where = f"stack.blocks.{layer}.{path}"
    with torch.no_grad():
        model.get_submodule(where).weight.view(-1)[0] = value  # type: ignore[union-attr, operator]
    assert origin(model) == f"the output of {where!r} ({kind})"


def test_what_comes_up_between_modules_is_told_apart() -> None:
    class Dividing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.last(self.first(x) / (x - x))
            return made

    model = Dividing()
    assert find_origin(model, lambda: model(torch.ones(1, 2)).sum()) == "what comes into 'last' (Linear)"


class Root(nn.Module):
    """Finite at 0, where its gradient is not."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt()


def test_a_gradient_that_is_not_finite() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), Root(), nn.Linear(2, 1))
    with torch.no_grad():
        model[0].weight.fill_(-1.0)
    assert find_origin(model, lambda: model(torch.ones(3, 2)).sum()) == "the gradient that '2' (Root) hands back"
    assert all(one.grad is None for one in model.parameters())
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())


def test_the_loss_itself() -> None:
    model = nn.Linear(2, 1)
    assert find_origin(model, lambda: model(torch.ones(1, 2)).sum() * float("inf")) == (
        "the loss itself, from finite logits"
    )


def test_nothing_is_wrong() -> None:
    assert origin(vit()) is None


def poisoned(monkeypatch: pytest.MonkeyPatch, when: int, harm: Callable[[nn.Module], None]) -> None:
    """Before micro-batch number `when`, harm the model."""
    real = ImageTask.loss

    def loss(task: ImageTask, model: nn.Module, batch: Tensor) -> Tensor:
        if int(batch) == when:
            with torch.no_grad():
                harm(model)
        return real(task, model, batch)

    monkeypatch.setattr(ImageTask, "loss", loss)


def break_block(model: nn.Module) -> None:
    model.get_submodule("stack.blocks.1.mlp.up").bias[0] = float("nan")  # type: ignore[index, union-attr, operator]


def test_a_run_stops_and_keeps_its_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned(monkeypatch, 2, break_block)
    with pytest.raises(LossNotFiniteError) as caught:
        train(tiny(), tmp_path / "run")
    assert str(caught.value) == (
        "Expected a finite loss in step 2 but got NaN or Inf, first in the output of 'stack.blocks.1.mlp.up' (Linear). "
        "Try a lower --set lr or a longer --set warmup; the last good checkpoint is step-00000002.pt in "
        f"{tmp_path / 'run' / 'checkpoints'}."
    )
    folder = RunFolder(tmp_path / "run")
    assert folder.manifest()["state"] == "stopped"
    assert "stack.blocks.1.mlp.up" in folder.manifest()["reason"]
    assert not folder.final.exists()
    found = Checkpoints(folder.checkpoints).latest()
    assert found is not None
    assert found.step == 2
    assert all(torch.isfinite(value).all() for value in found.read()["state"].values() if value.is_floating_point())
    # Again, it comes to the same end; without the poison it goes on to the other.
    with pytest.raises(
        LossNotFiniteError, match=r"step 2 but got NaN or Inf, first in the output of 'stack\.blocks\.1"
    ):
        resume(folder.path)
    monkeypatch.undo()
    resume(folder.path)
    assert folder.finished


def test_weights_are_those_of_the_last_good_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"log_every": 4, "checkpoint_every": 0.0, "evaluate_every": 0.0}
    place = Place(torch.device("cpu"))
    good = Run(tiny(**settings), RunFolder(tmp_path / "good"), place)
    for _ in range(2):
        good.advance()
    kept = {name: value.clone() for name, value in good.engine.model.state_dict().items()}

    def scale(model: nn.Module) -> None:
        model.head.weight.mul_(float("inf"))  # type: ignore[union-attr, operator]

    poisoned(monkeypatch, 2, scale)
    bad = Run(tiny(**settings), RunFolder(tmp_path / "bad"), place)
    for _ in range(3):  # the log looks only after the fourth
        bad.advance()
    with pytest.raises(LossNotFiniteError, match="there was no checkpoint yet"):
        bad.advance()
    found = bad.engine.model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in kept.items() if "head" not in name)


def test_a_later_micro_batch_is_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ImageTask.loss

    def loss(task: ImageTask, model: nn.Module, batch: Tensor) -> Tensor:
        return real(task, model, batch) * (float("nan") if int(batch) == 5 else 1.0)

    monkeypatch.setattr(ImageTask, "loss", loss)
    with pytest.raises(LossNotFiniteError, match="in step 2 but got NaN or Inf, first in the loss itself"):
        train(tiny(micro_batch=4), tmp_path / "run")


def test_a_learning_rate_that_is_far_too_high(tmp_path: Path) -> None:
    with pytest.raises(LossNotFiniteError, match=r"a finite loss in step \d"):
        train(tiny(optimiser__lr=1e30, optimiser__clip=0.0), tmp_path / "run")
