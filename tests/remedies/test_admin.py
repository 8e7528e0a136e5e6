from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard

import unsmooth
from tests.remedies.by_hand import HANDS, POST, PRE, Edits, blocks_of, by_hand, exact, gradients_near, near, streams
from tests.remedies.hosts import BY_NAME, DIM, LAYERS, step_by_step
from tests.remedies.snapshot import Snapshot
from unsmooth import networks
from unsmooth.errors import UnsmoothError
from unsmooth.remedies import applied, apply, calibrate

ABLE = tuple(name for name in POST if name != "albert")
OMEGA = 1.0 + torch.rand(LAYERS, 2, DIM, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def weighed(omega: Tensor) -> Edits:
    return Edits(first=lambda x, a: omega[0] * x + a, second=lambda x, m, bottom: omega[1] * x + m)


def omegas(model: Any) -> Tensor:
    return torch.stack([block.unsmooth.admin.omega.detach() for block in blocks_of(model)])


def set_omega(model: Any) -> Any:
    with torch.no_grad():
        for block, omega in zip(blocks_of(model), OMEGA, strict=True):
            block.unsmooth.admin.omega.copy_(omega)
    return model


class Profile:
    """ω of one branch after the other, as the blocks by hand come to them."""

    def __init__(self) -> None:
        self.next, self.found = 1.0, []

    def add(self, x: Tensor, branch: Tensor, bottom: Tensor | None = None) -> Tensor:
        self.found.append(self.next)
        weighed = self.next * x
        variances = [(one - one.mean()).square().mean() for one in (weighed.detach(), branch.detach())]
        self.next = float(sum(variances)) ** 0.5
        return weighed + branch

    def by_layer(self) -> Tensor:
        return torch.tensor(self.found, dtype=torch.float64).reshape(LAYERS, 2, 1).expand(LAYERS, 2, DIM)


@pytest.mark.parametrize("name", ABLE)
def test_the_stream_is_weighed_in_front_of_both_norms(name: str) -> None:
    model = exact(name)
    before = Snapshot.of(model)
    set_omega(apply(model, "admin", start="ones"))
    near(name, streams(name, model)[1], by_hand(name, exact(name), [weighed(omega) for omega in OMEGA]))
    before.check(unsmooth.undo(model))


def test_gradients() -> None:
    model = set_omega(apply(exact("bert"), "admin"))
    gradients_near("bert", model, exact("bert"), [weighed(omega) for omega in OMEGA])


@pytest.mark.parametrize("name", ABLE)
def test_one_pass_over_data_sets_omega(name: str) -> None:
    profile = Profile()
    wanted = by_hand(name, exact(name), Edits(first=profile.add, second=profile.add))
    host, model = BY_NAME[name], apply(exact(name), "admin")
    call = host.call(host.inputs().double() if host.kind == "vectors" else host.inputs())
    with step_by_step():
        calibrate(model, call)
    torch.testing.assert_close(omegas(model), profile.by_layer(), rtol=1e-9, atol=0.0)
    near(name, streams(name, model)[1], wanted)
    assert applied(model)[0].report[2]["mean omega of the MLP"] == pytest.approx(profile.found[-1])


def test_without_data_random_tokens_do() -> None:
    profile, model = Profile(), exact("bert")
    x = torch.randn(4, 64, DIM, generator=torch.Generator().manual_seed(0)).double()
    for block in blocks_of(model):
        x = HANDS["BertLayer"](block)(x, Edits(first=profile.add, second=profile.add))
    state = torch.get_rng_state()
    apply(model, "admin")
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(omegas(model), profile.by_layer(), rtol=1e-9, atol=0.0)


def test_padding_is_not_counted() -> None:
    host, found = BY_NAME["bert"], []
    ids = host.inputs(rows=1)
    for tokens, real in ((5, None), (8, torch.arange(8)[None] < 5)):
        model = calibrate(apply(exact("bert"), "admin"), host.call(ids[:, :tokens], real))
        found.append(omegas(model))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=0.0)


def test_a_calibrated_model_is_in_the_mode_it_was_in() -> None:
    config = networks.EncoderConfig(
        depth=2, dim=32, heads=4, hidden=48, vocabulary=50, length=40, norm="post", dropout=0.5
    )
    model = networks.build(config).train()
    model.stack.blocks[0].mlp.eval()
    modes = [module.training for module in model.modules()]
    apply(model, "admin")
    assert [module.training for name, module in model.named_modules() if "unsmooth" not in name] == modes
    state = torch.get_rng_state()
    calibrate(model, BY_NAME["own_encoder_post"].inputs())
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for name, module in model.named_modules() if "unsmooth" not in name] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


def test_blocks_that_need_more_than_a_stream_start_at_one() -> None:
    host = BY_NAME["own_decoder_relative"]
    model = apply(host.model(), "admin")
    edits = [module.unsmooth.admin for module in model.modules() if hasattr(module, "unsmooth")]
    assert all(edit.omega.eq(1.0).all() for edit in edits)
    calibrate(model, host.call(host.inputs()))
    assert edits[0].omega[0].eq(1.0).all()
    assert edits[2].omega.gt(1.0).all()


def test_a_pass_that_fails_leaves_omega_as_it_was() -> None:
    model = apply(BY_NAME["torch_post"].model(), "admin")
    before = Snapshot.of(model)
    rows = BY_NAME["torch_post"].inputs()
    with pytest.raises(UnsmoothError, match="Expected finite numbers in the pass that sets ω but got ω = nan"):
        calibrate(model, rows.index_fill(1, torch.tensor([3]), float("nan")))
    before.check(model)
    handle = model.layers[2].register_forward_pre_hook(lambda module, args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        calibrate(model, rows)
    handle.remove()
    before.check(model)


def test_no_profile_of_weights_that_are_not_finite() -> None:
    model = BY_NAME["torch_post"].model()
    torch.nn.init.constant_(model.layers[1].linear1.bias, float("inf"))
    with pytest.raises(UnsmoothError, match="finite numbers"):
        apply(model, "admin")
    assert not applied(model)
    assert applied(apply(model, "admin", start="ones"))


def test_sharded_models_come_too_late(tmp_path: Path) -> None:
    """FSDP2 would forget what is written into the weights that it gathers for a pass."""
    dist.init_process_group("gloo", f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = apply(BY_NAME["torch_post"].model(), "admin")
        fully_shard(model)
        with pytest.raises(UnsmoothError, match="calibrate before fully_shard"):
            calibrate(model, BY_NAME["torch_post"].inputs())
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("order", [("admin", "deescalate"), ("deescalate", "admin")])
def test_it_weighs_the_stream_that_edits_of_the_norm_leave(order: tuple[str, str]) -> None:
    model = exact("bert")
    for remedy in order:
        apply(model, remedy, **({"start": "ones"} if remedy == "admin" else {"tau": 0.6, "place": "norm"}))
    edits = [weighed(omega) for omega in OMEGA]
    for edit in edits:
        edit.normed = lambda x: x - 0.6 * x.mean(dim=1, keepdim=True)
    near("bert", streams("bert", set_omega(model))[1], by_hand("bert", exact("bert"), edits))


@pytest.mark.parametrize("name", [PRE[0], "neox_parallel", "albert"])
def test_what_it_refuses(name: str) -> None:
    model = BY_NAME[name].model()
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match=r"no norm follows|at every depth"):
        apply(model, "admin")
    before.check(model)


def test_bad_calls_are_named() -> None:
    with pytest.raises(UnsmoothError, match="Expected a model with a remedy that reads data"):
        calibrate(BY_NAME["bert"].model(), {})
    with pytest.raises(UnsmoothError, match="Expected a batch as a tensor, a mapping or a tuple"):
        calibrate(apply(BY_NAME["bert"].model(), "admin"), "a text")
    with pytest.raises(UnsmoothError, match="ω"):
        unsmooth.fold(apply(BY_NAME["bert"].model(), "admin"))
