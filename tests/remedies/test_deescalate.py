from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache

import unsmooth
from tests.remedies.by_hand import EVERY, Edits, blocks_of, by_hand, exact, near, streams
from tests.remedies.hosts import BY_NAME
from tests.remedies.snapshot import Snapshot
from unsmooth.errors import UnsmoothError

CAUSAL = ("gpt2", "neox_sequential", "neox_parallel", "llama")
PLACES = ("attention", "residual", "norm", "values")
Tau = float | Tensor


def without_mean(causal: bool, tau: Tau, first: str = "keep", prior: float = 0.0) -> Callable[[Tensor], Tensor]:
    """(I − τΠ)X token by token, Π of what each may see."""

    def edit(x: Tensor) -> Tensor:
        rows = []
        for place in range(x.shape[1]):
            seen = x[:, : place + 1] if causal else x
            alone = seen.shape[1] == 1 and first == "keep"
            mean = seen.sum(dim=1) / (seen.shape[1] + prior)
            rows.append(x[:, place] if alone else x[:, place] - tau * mean)
        return torch.stack(rows, dim=1)

    return edit


def at(place: str, name: str, edit: Callable[[Tensor], Tensor]) -> Edits:
    if place == "attention":
        return Edits(first=lambda x, a: x + edit(a))
    if place == "norm":
        return Edits(normed=edit)
    if place == "values":
        return Edits(values=edit)
    if name == "neox_parallel":  # one addition of both branches
        return Edits(out=lambda out, x: edit(out))
    return Edits(first=lambda x, a: edit(x + a))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", EVERY)
def test_every_place(name: str, place: str) -> None:
    edits = at(place, name, without_mean(name in CAUSAL, 0.7))
    model = unsmooth.apply(exact(name), "deescalate", tau=0.7, place=place)
    near(name, streams(name, model)[1], by_hand(name, exact(name), edits))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize(("first", "prior"), [("remove", 0.0), ("keep", 2.5), ("remove", 0.5)])
def test_the_first_token_and_the_prior(name: str, first: str, prior: float) -> None:
    edits = at("attention", name, without_mean(name in CAUSAL, 0.9, first, prior))
    model = unsmooth.apply(exact(name), "deescalate", tau=0.9, first=first, prior=prior)
    near(name, streams(name, model)[1], by_hand(name, exact(name), edits))


@pytest.mark.parametrize("learn", ["layer", "channel"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["bert", "llama", "neox_parallel"])
def test_learned_tau(name: str, place: str, learn: str) -> None:
    model, plain = unsmooth.apply(exact(name), "deescalate", tau=0.5, place=place, learn=learn), exact(name)
    generator = torch.Generator().manual_seed(2)
    learned, taus = [block.unsmooth.deescalate.tau for block in blocks_of(model)], []
    for tau in learned:
        taus.append(0.5 + 0.3 * torch.randn(tau.shape, generator=generator, dtype=tau.dtype))
        tau.data.copy_(taus[-1])
        taus[-1].requires_grad_()
    channels = {"llama": (2, 8)}.get(name, (4, 8)) if place == "values" else (32,)
    assert {tuple(tau.shape) for tau in taus} == {channels if learn == "channel" else (1,)}
    got = streams(name, model)[1]
    wanted = by_hand(name, plain, [at(place, name, without_mean(name in CAUSAL, tau)) for tau in taus])
    near(name, got, wanted)
    for out in (got, wanted):
        goal = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=out.dtype)
        (out - goal).square().mean().backward()
    near(name, torch.cat([x.grad.flatten() for x in learned]), torch.cat([x.grad.flatten() for x in taus]))


@pytest.mark.parametrize("tau", [0.0, 0.3, 1.0, 1.5, 2.0])
def test_similarity_has_its_closed_form(tau: float) -> None:
    model = exact("torch_post")
    seen: list[Tensor] = []

    def similarity(module: nn.Module, args: Any, out: Tensor) -> None:
        seen.append(out.mean(dim=1).square().sum(-1) * out.shape[1] / out.square().sum((1, 2)))

    for applied in (False, True):
        if applied:
            unsmooth.apply(model, "deescalate", tau=tau)
        handle = blocks_of(model)[0].dropout1.register_forward_hook(similarity)
        streams("torch_post", model)
        handle.remove()
    before, after = seen
    assert (before > 0.2).all(), "tokens that are not alike to begin with would show nothing"
    torch.testing.assert_close(after, (1 - tau) ** 2 * before / ((1 - tau) ** 2 * before + 1 - before))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["gpt2", "llama", "neox_parallel"])
def test_tokens_in_the_cache_are_counted(name: str, place: str) -> None:
    model, host, left = unsmooth.apply(exact(name), "deescalate", tau=0.7, place=place), BY_NAME[name], []
    blocks_of(model)[-1].register_forward_hook(
        lambda module, args, out: left.append(out if isinstance(out, Tensor) else out[0])
    )
    cache, inputs = DynamicCache(config=model.config), host.inputs()
    with torch.no_grad():
        for part in inputs.split([3, 1, 2, 2], dim=1):
            model(input_ids=part, past_key_values=cache, use_cache=True)
    wanted = by_hand(name, exact(name), at(place, name, without_mean(True, 0.7)))
    near(name, torch.cat(left, dim=1), wanted.detach())


@pytest.mark.parametrize("name", ["bert", "torch_post", "gpt2", "vit", "torch_pre"])
def test_after_the_addition_means_after_dropout_too(name: str) -> None:
    host, seen = BY_NAME[name], []
    model = host.model().train()
    block = blocks_of(model)[0]
    for module in block.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.4 if name != "vit" else 0.0  # which drops between the branch and the addition
    if name == "gpt2":
        with pytest.warns(UserWarning, match="leak the future"):
            unsmooth.apply(model, "deescalate", tau=1.0, place="residual", mean="all", allow_leak=True)
    else:
        unsmooth.apply(model, "deescalate", tau=1.0, place="residual")
    sum_at = {"bert": "attention.output.LayerNorm", "torch_post": "norm1", "gpt2": "ln_2", "vit": "layernorm_after"}
    norm = block.get_submodule(sum_at.get(name, "norm2"))
    norm.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    host.output(model, host.call(host.inputs()))
    assert seen[0].mean(dim=1).abs().max() < 1e-5 < seen[0].abs().max()


@pytest.mark.parametrize("name", ["bert", "gpt2", "torch_pre", "llama"])
def test_after_the_addition_comes_after_every_edit_of_the_branch(name: str) -> None:
    edit = without_mean(name in CAUSAL, 0.7)
    edits = Edits(first=lambda x, a: edit(x + 0.5 * a), second=lambda x, m, bottom: x + 0.5 * m)
    wanted = by_hand(name, exact(name), edits)
    options = {"deescalate": {"tau": 0.7, "place": "residual"}, "rezero": {"start": 0.5, "norm": "keep"}}
    for order in (("deescalate", "rezero"), ("rezero", "deescalate")):
        model = exact(name)
        before = Snapshot.of(model)
        for remedy in order:
            unsmooth.apply(model, remedy, **options[remedy])
        near(name, streams(name, model)[1], wanted)
        before.check(unsmooth.undo(model))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("learn", ["no", "layer", "channel"])
@pytest.mark.parametrize("name", ["albert", "torch_tokens_first", "neox_parallel"])
def test_neutral_and_undo(name: str, place: str, learn: str) -> None:
    model = exact(name)
    before, plain = Snapshot.of(model), streams(name, model)[1]
    unsmooth.apply(model, "deescalate", tau=0.0, place=place, learn=learn)
    assert torch.equal(streams(name, model)[1], plain)
    before.check(unsmooth.undo(model))


def test_at_one_the_first_token_is_zero_unless_kept() -> None:
    for first, zero in (("remove", True), ("keep", False)):
        model, seen = unsmooth.apply(exact("gpt2"), "deescalate", first=first), []
        blocks_of(model)[0].attn.register_forward_hook(lambda module, args, out, seen=seen: seen.append(out[0]))
        streams("gpt2", model)
        assert (seen[0][:, 0].abs().max() == 0.0) == zero
        assert seen[0][:, 1:].abs().max() > 0.0


def test_a_row_of_one_token_is_left_alone() -> None:
    host = BY_NAME["bert"]
    model, inputs = host.model(), host.inputs(tokens=1)
    with torch.no_grad():
        plain = host.output(model, host.call(inputs))
        unsmooth.apply(model, "deescalate")
        assert torch.equal(host.output(model, host.call(inputs)), plain)
        real = torch.arange(4) < torch.tensor([[1], [4]])
        padded = host.output(model, host.call(host.inputs(tokens=4), real))
        alone = host.output(model, host.call(host.inputs(tokens=4)[:1, :1]))
    torch.testing.assert_close(padded[:1, :1], alone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": 2.5}, "Expected tau between 0"),
        ({"place": "atention"}, "Try place='attention'"),
        ({"learn": True}, "Expected learn as one of no, layer, channel"),
        ({"first": "zero"}, "Expected first as one of"),
        ({"prior": -1.0}, "Expected prior between 0"),
        ({"mean": "all"}, "allow_leak=True"),
    ],
)
def test_bad_options_leave_the_model_alone(options: dict[str, Any], message: str) -> None:
    model = BY_NAME["gpt2"].model()
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match=message):
        unsmooth.apply(model, "deescalate", **options)
    before.check(model)
