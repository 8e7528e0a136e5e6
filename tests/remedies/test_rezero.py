from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unsmooth
from tests.remedies.by_hand import EVERY, Edits, blocks_of, by_hand, exact, gradients_near, near, streams
from tests.remedies.hosts import BY_NAME
from tests.remedies.snapshot import Snapshot
from unsmooth.errors import UnsmoothError
from unsmooth.models.value_projection import value_projection
from unsmooth.remedies import applied


def scaled(attention: float, mlp: float, norms: bool) -> Edits:
    return Edits(first=lambda x, a: x + attention * a, second=lambda x, m, bottom: x + mlp * m, norms=norms)


def set_alpha(model: Any, *alpha: float) -> Any:
    with torch.no_grad():
        for block in blocks_of(model):
            block.unsmooth.rezero.alpha.copy_(torch.tensor(alpha, dtype=torch.float64))
    return model


@pytest.mark.parametrize("name", EVERY)
def test_every_block_starts_as_the_identity(name: str) -> None:
    model = unsmooth.apply(exact(name), "rezero")
    entered, left = streams(name, model)
    assert torch.equal(entered, left)
    left.square().sum().backward()
    assert all(block.unsmooth.rezero.alpha.grad.abs() > 0 for block in blocks_of(model)), "α would never move"


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("norm", ["drop", "keep"])
def test_branches_are_scaled_by_what_was_learned(name: str, norm: str) -> None:
    model = set_alpha(unsmooth.apply(exact(name), "rezero", norm=norm), 0.4)
    near(name, streams(name, model)[1], by_hand(name, exact(name), scaled(0.4, 0.4, norm == "keep")))
    model = set_alpha(unsmooth.apply(exact(name), "rezero", norm=norm, share=False), 0.4, -0.3)
    near(name, streams(name, model)[1], by_hand(name, exact(name), scaled(0.4, -0.3, norm == "keep")))


@pytest.mark.parametrize("name", ["bert", "torch_tokens_first", "gpt2", "neox_parallel"])
def test_gradients(name: str) -> None:
    model, edits = unsmooth.apply(exact(name), "rezero", start=0.4), scaled(0.4, 0.4, False)
    gradients_near(name, model, exact(name), edits)
    # Of α itself, against a difference quotient.
    alpha = blocks_of(model)[1].unsmooth.rezero.alpha
    found, losses = float(alpha.grad), []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            alpha.add_(step)
            out = streams(name, model)[1]
            alpha.sub_(step)
        wanted = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=out.dtype)
        losses.append(float((out - wanted).square().mean()))
    assert found == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=2e-3 if name == "neox_parallel" else 1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_one_number_per_layer_or_two(name: str) -> None:
    plain = BY_NAME[name].model()
    for share, count in ((True, 1), (False, 2)):
        model = unsmooth.apply(BY_NAME[name].model(), "rezero", share=share)
        new = [key for key, _ in model.named_parameters() if key not in plain.state_dict()]
        assert len(new) == len(blocks_of(model))
        assert all(model.state_dict()[key].shape == (count,) for key in new)
        gone = [key for key in plain.state_dict() if key not in model.state_dict()]
        per_block = 2 if name == "llama" else 4
        assert len(gone) == per_block * len(blocks_of(model))
        assert all("norm" in key.lower() or ".ln_" in key for key in gone)


@pytest.mark.parametrize("name", EVERY)
def test_neutral_and_undo(name: str) -> None:
    model = exact(name)
    before, plain = Snapshot.of(model), streams(name, model)[1]
    unsmooth.apply(model, "rezero", start=1.0, norm="keep")
    assert torch.equal(streams(name, model)[1], plain)
    before.check(unsmooth.undo(model))
    unsmooth.apply(model, "rezero")
    streams(name, model)
    before.check(unsmooth.undo(model))


def test_norms_follow_a_model_that_moves() -> None:
    model = unsmooth.apply(BY_NAME["bert"].model(), "rezero").double()
    Snapshot.of(exact("bert")).check(unsmooth.undo(model), copied=True)


@pytest.mark.parametrize("name", ["bert", "albert", "torch_post", "llama"])
def test_checkpoints_of_both_kinds_load(name: str) -> None:
    other = exact(name)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    model = unsmooth.apply(exact(name), "rezero", start=0.4)
    model.load_state_dict(other.state_dict(), strict=True)
    near(name, streams(name, model)[1], by_hand(name, other, scaled(0.4, 0.4, False)))
    set_alpha(model, 0.7)
    again = unsmooth.apply(exact(name), "rezero")
    again.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(streams(name, again)[1], streams(name, model)[1])
    # The norms of the checkpoint come back, not those that were dropped.
    Snapshot.of(other).check(unsmooth.undo(model), copied=True)


@pytest.mark.parametrize("name", EVERY)
def test_kept_norms_let_it_fold(name: str) -> None:
    plain = exact(name)
    model = set_alpha(unsmooth.apply(exact(name), "rezero", norm="keep", share=False), 0.4, -0.3)
    unsmooth.fold(model)
    near(name, streams(name, model)[1], by_hand(name, plain, scaled(0.4, -0.3, True)))
    plain.load_state_dict(model.state_dict())
    assert torch.equal(streams(name, plain)[1], streams(name, model)[1])


def test_a_folded_model_is_saved_and_loaded_by_its_library(tmp_path: Path) -> None:
    host = BY_NAME["gpt2"]
    model = set_alpha(unsmooth.apply(host.model(), "rezero", norm="keep"), 0.6)
    call = host.call(host.inputs())
    with torch.no_grad():
        wanted = host.output(model, call)
        unsmooth.fold(model).save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path).eval()
        torch.testing.assert_close(host.output(loaded, call), wanted, rtol=0, atol=1e-5)


def test_dropped_norms_do_not_fold() -> None:
    model = unsmooth.apply(BY_NAME["bert"].model(), "rezero")
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match="no weights make a norm do nothing"):
        unsmooth.fold(model)
    before.check(model)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_whoever_explains_sees_h_scaled_and_no_norm(name: str) -> None:
    plain = value_projection(exact(name), 1)
    model = set_alpha(unsmooth.apply(exact(name), "rezero", share=False), 0.4, 5.0)
    found = value_projection(model, 1)
    torch.testing.assert_close(found.summed(), 0.4 * plain.summed())
    assert found.norm.kind == "none"
    assert not found.w_o.requires_grad
    (done,) = applied(model)
    assert done.report[1] == pytest.approx({"alpha of attention": 0.4, "alpha of the MLP": 5.0})


@pytest.mark.parametrize("training", [True, False])
def test_torch_layers_do_not_take_their_fused_path(training: bool) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 48, 0.0, batch_first=True)
    model = unsmooth.apply(nn.TransformerEncoder(layer, 2), "rezero").train(training)
    x, padding = torch.randn(2, 5, 32), torch.arange(5) >= torch.tensor([[5], [3]])
    assert torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        assert torch.equal(model(x), x)
        assert torch.equal(model(x, src_key_padding_mask=padding), x)


def test_edits_at_a_dropped_norm_still_act() -> None:
    def without_mean(x: torch.Tensor) -> torch.Tensor:
        return x - 0.6 * x.mean(dim=1, keepdim=True)

    edits = Edits(normed=without_mean, first=lambda x, a: x + 0.5 * a, second=lambda x, m, _: x + 0.5 * m, norms=False)
    for name in ("bert", "vit"):
        wanted = by_hand(name, exact(name), edits)
        for order in (("deescalate", "rezero"), ("rezero", "deescalate")):
            model = exact(name)
            before = Snapshot.of(model)
            for remedy in order:
                options = {"tau": 0.6, "place": "norm"} if remedy == "deescalate" else {"start": 0.5}
                unsmooth.apply(model, remedy, **options)
            near(name, streams(name, model)[1], wanted)
            before.check(unsmooth.undo(model))
