"""Losses of hidden states in a run: gradients against a pass written out, masks, compiling, whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.training.tiny_runs import tiny
from unsmooth import load_scan, losses
from unsmooth.cli.app import run
from unsmooth.errors import UnsmoothError
from unsmooth.networks.config import EncoderConfig, ViTConfig
from unsmooth.networks.encoder import Encoder
from unsmooth.networks.vit import ViT
from unsmooth.training import train
from unsmooth.training.added_losses import AddedLosses

SMALL = ViTConfig(image=8, patch=4, classes=4, depth=3, dim=8, heads=2, hidden=16)


def pictures() -> Tensor:
    return torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def test_gradients_are_those_of_a_pass_written_out() -> None:
    model = ViT(SMALL).double().train()
    added = AddedLosses(["cosine(weight=0.5, layer=1)", "layer_contrast(weight=2)"], model)
    total = added.total(model(pictures()).square().mean())
    assert not added.heard
    found = gradients(model, total)

    plain = ViT(SMALL).double().train()
    tokens = [plain.embedded(pictures(), None)]
    for block in plain.stack.children():
        for one in block if isinstance(block, nn.ModuleList) else [block]:
            tokens.append(one(tokens[-1]))
    unit = nn.functional.normalize(tokens[1][:, 1:], dim=-1)  # without the class token
    cosines = (unit @ unit.mT).sum(dim=(1, 2)) - 4
    first, last = tokens[0][:, 1:].detach(), tokens[3][:, 1:]
    others = (last.sum(dim=1, keepdim=True) - last) / 3
    margins = (first * (others - last)).sum(dim=-1)
    logits = plain.head(plain.norm(tokens[3][:, 0]))
    wanted = logits.square().mean() + 0.5 * cosines.mean() / 12 + 2 * (1 + margins.exp()).log().mean()
    assert total.item() == pytest.approx(wanted.item(), rel=1e-12)
    torch.testing.assert_close(found, gradients(plain, wanted))


def test_padding_is_left_out_and_evaluation_unheard() -> None:
    model = Encoder(EncoderConfig(vocabulary=9, depth=2, dim=8, heads=2, hidden=16)).train()
    added = AddedLosses(["cosine"], model)
    ids, mask = torch.tensor([[3, 4, 5, 6], [3, 4, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    model(ids, mask)
    heard = added.heard[2]
    assert added.total(torch.zeros(())).item() == pytest.approx(losses.cosine(heard, mask.bool()).item())
    model.eval()(ids, mask)
    assert not added.heard


def test_compiled_blocks_are_heard() -> None:
    model = ViT(SMALL).double().train()
    added = AddedLosses(["cosine"], model)
    wanted = added.total(model(pictures()).sum())
    torch.compiler.reset()
    for block in (one for one in model.modules() if type(one).__name__ == "Block"):
        block._compiled_call_impl = torch.compile(block._call_impl, backend="eager", fullgraph=True)  # type: ignore[assignment]
    found = added.total(model(pictures()).sum())
    torch.testing.assert_close(gradients(model, found), gradients(model, wanted))


def last_similarity(folder: Path) -> float:
    found = load_scan(sorted(folder.glob("scans/*"))[-1])
    return float(found.curve("mean_cosine")[-1].mean)


def test_a_run_learns_what_is_added(tmp_path: Path) -> None:
    steps = {"steps": 12, "log_every": 12, "evaluate_every": 12.0, "checkpoint_every": 12.0}
    train(tiny(**steps), tmp_path / "plain")
    train(tiny(losses=("cosine(weight=5)", "spectrum(weight=0.1)"), **steps), tmp_path / "added")
    assert last_similarity(tmp_path / "added") < last_similarity(tmp_path / "plain") - 0.05
    kept = json.loads((tmp_path / "added" / "config.json").read_text())
    assert kept["losses"] == ["cosine(weight=5)", "spectrum(weight=0.1)"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("simcse", "a loss of one pass over the batch but got simcse"),
        ("cosine(layer=4)", "a layer from 0 to 3 for cosine but got 4"),
        ("cosine(layer=-5)", "a layer from 0 to 3"),
        ("cosinus", "a known loss"),
    ],
)
def test_what_cannot_be_added(text: str, words: str) -> None:
    with pytest.raises(UnsmoothError, match=words):
        AddedLosses([text], ViT(SMALL))


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ["--loss", "cosine(weight=0.1)", "--loss", "dispersion"]
    assert run(["train", "vit_cifar100", "--size", "tiny", "--show", *wanted]) == 0
    assert json.loads(capsys.readouterr().out)["losses"] == ["cosine(weight=0.1)", "dispersion"]
    assert run(["train", "vit_cifar100", "--loss", "cosin"]) == 2
    assert "Did you mean 'cosine'" in capsys.readouterr().err
