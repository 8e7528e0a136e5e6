from __future__ import annotations

import copy
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.remedies.hosts import BY_NAME
from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.remedies.block import remedies_of
from unsmooth.remedies.call import Volatile

HOST = BY_NAME["llama"]


def model_with(name: str, checkpointed: bool = True, **options: Any) -> Any:
    model = remedies.apply(HOST.model(), name, **options).train()
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def loss_of(model: Any, seed: int = 0) -> Tensor:
    logits = model(**HOST.call(HOST.inputs(seed=seed)), use_cache=False).logits
    return (logits - torch.randn(logits.shape, generator=torch.Generator().manual_seed(9))).square().mean()


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", ["deescalate", "attnscale", "sharpen"])
def test_blocks_may_run_again_after_other_passes(name: str) -> None:
    found = {}
    for checkpointed in (True, False):
        model = model_with(name, checkpointed)
        first, second = loss_of(model, 0), loss_of(model, 1)
        (first + second).backward()
        found[checkpointed] = gradients(model)
    for parameter, gradient in found[True].items():
        torch.testing.assert_close(gradient, found[False][parameter], atol=1e-5, rtol=1e-4)


def test_blocks_that_share_are_told_when_another_pass_came_between() -> None:
    model = model_with("neutreno")
    first, second = loss_of(model, 0), loss_of(model, 1)
    second.backward()  # the last pass is still there
    with pytest.raises(UnsmoothError, match="the backward pass before the next forward pass"):
        first.backward()


def test_blocks_that_share_are_told_when_their_gradient_would_be_lost() -> None:
    model = model_with("neutreno", checkpointed=False)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    embeddings = model.get_input_embeddings()(HOST.inputs()).detach().requires_grad_()
    loss = model(inputs_embeds=embeddings, use_cache=False).logits.square().mean()
    with pytest.raises(UnsmoothError, match="use_reentrant=False"):
        loss.backward()


def test_several_passes_without_checkpointing() -> None:
    model = model_with("neutreno", checkpointed=False)
    twins = [copy.deepcopy(model) for _ in range(2)]
    (loss_of(model, 0) + loss_of(model, 1)).backward()
    for seed, twin in enumerate(twins):
        loss_of(twin, seed).backward()
    one, two = map(gradients, twins)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, one[name] + two[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("trained", [True, False])
def test_nothing_of_a_pass_without_gradients_is_kept(trained: bool) -> None:
    model = model_with("neutreno", checkpointed=False)
    with torch.set_grad_enabled(trained):
        model(**HOST.call(HOST.inputs()))
    homes = [home for module in model.modules() if (home := remedies_of(module)) is not None]
    assert all("call" not in home.now.held for home in homes)
    assert all(bool(home.shared.held) is trained for home in homes)
    assert all(not home.shared.held for home in map(remedies_of, copy.deepcopy(model).model.layers))


def past_the_stack(model: Any, stream: Tensor, again: bool = False) -> Tensor:
    """The blocks one by one, as timm's own ways past its stack do; `again` has them run again in the backward pass."""
    for block in model.blocks:
        stream = checkpoint(block, stream, use_reentrant=False) if again else block(stream)
    return stream


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("name", ["neutreno", "value_residual", "dlcl", "deescalate"])
def test_every_pass_past_the_stack_is_one_of_its_own(name: str, trained: bool) -> None:
    model = remedies.apply(BY_NAME["timm_vit"].model(), name)
    streams = [torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    with torch.set_grad_enabled(trained):
        wanted = [model.blocks(stream) for stream in streams]
        for again in (False, True) if trained else (False,):
            found = [past_the_stack(model, stream, again) for stream in streams]
            assert all(map(torch.equal, found, wanted))
        assert torch.equal(model.blocks(streams[0]), wanted[0])  # and back


@pytest.mark.parametrize("name", ["neutreno", "value_residual", "dlcl", "sharpen"])
def test_training_past_the_stack_with_blocks_that_run_again(name: str) -> None:
    stream = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    found = []
    for way in (lambda model: model.blocks(stream), lambda model: past_the_stack(model, stream, again=True)):
        model = remedies.apply(BY_NAME["timm_vit"].model(), name).train()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            way(model).square().mean().backward()
            optimiser.step()
        found.append([parameter.detach() for parameter in model.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_what_is_done_before_a_pass_is_done_past_the_stack() -> None:
    model = remedies.apply(BY_NAME["timm_vit"].model(), "sigma_reparam").train()
    stream = torch.randn(2, 5, 16)
    vectors = {name: one.clone() for name, one in model.named_buffers() if name.endswith((".left", ".right"))}
    assert vectors
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            parameter.add_(torch.randn_like(parameter))
    past_the_stack(model, stream, again=True).sum().backward()
    moved = [not torch.equal(one, vectors[name]) for name, one in model.named_buffers() if name in vectors]
    assert all(moved)
    now = {name: one.clone() for name, one in model.named_buffers() if name in vectors}
    past_the_stack(model, stream, again=True)  # forward only: a step more, and none in the backward pass before
    assert any(not torch.equal(one, now[name]) for name, one in model.named_buffers() if name in now)


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize(
    "name", ["layerscale", "deescalate", "gfsa", "value_residual", "dlcl", "centred", "neutreno", "shaped"]
)
def test_threads_that_call_one_model_do_not_meet(name: str, compiling: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # As torch says in every thread while one of them compiles something, be it another model.
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", compiling)
    model = remedies.apply(HOST.model(), name).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # away from where remedies start
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    inputs = [HOST.inputs(seed=seed)[:, : 3 + seed] for seed in range(4)]

    def logits(ids: Tensor) -> Tensor:
        with torch.no_grad():
            return model(**HOST.call(ids), use_cache=False).logits

    wanted = [logits(ids) for ids in inputs]
    meeting = threading.Barrier(len(inputs))

    def work(number: int) -> bool:
        meeting.wait()
        return all(torch.equal(logits(inputs[number]), wanted[number]) for _ in range(15))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that they take turns inside a block
    try:
        with ThreadPoolExecutor(len(inputs)) as pool:
            assert all(pool.map(work, range(len(inputs))))
    finally:
        sys.setswitchinterval(before)


def test_a_model_that_threads_would_share_is_refused() -> None:
    with pytest.raises(UnsmoothError, match="a model that is not wrapped yet but got DataParallel"):
        remedies.apply(nn.DataParallel(HOST.model()), "deescalate")


class Adapter(nn.Module):
    """As low-rank adapters do: the projection, and something of its own beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.beside = base, nn.Linear(base.in_features, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.beside(x)
        return out


@pytest.mark.parametrize(
    ("name", "options", "place"),
    [
        ("centred", {}, "o_proj"),
        ("shaped", {}, "v_proj"),
        ("value_residual", {}, "v_proj"),
        ("deescalate", {"place": "values"}, "v_proj"),
    ],
)
def test_adapters_past_which_an_edit_would_act_are_told(name: str, options: dict[str, Any], place: str) -> None:
    model = remedies.apply(HOST.model(), name, **options)
    attention = model.model.layers[1].self_attn
    plain = getattr(attention, place)
    setattr(attention, place, Adapter(plain))
    with pytest.raises(UnsmoothError, match=rf"'self_attn\.{place}' .* but got a Adapter in its place"):
        model(**HOST.call(HOST.inputs()))
    setattr(attention, place, plain)
    model(**HOST.call(HOST.inputs()))
    copy.deepcopy(model)(**HOST.call(HOST.inputs()))


def test_adapters_that_no_edit_minds_are_nobodys_business() -> None:
    model = remedies.apply(HOST.model(), "layerscale")
    attention = model.model.layers[1].self_attn
    attention.v_proj = Adapter(attention.v_proj)
    model(**HOST.call(HOST.inputs()))


def held_by(model: Any) -> int:
    """How many tensors blocks and stack still hold for a pass."""
    homes = [home for module in model.modules() if (home := remedies_of(module)) is not None]
    places = [place for home in homes for volatile in (home.now, home.shared) for place in volatile.every()]
    return sum(key not in ("pass", "by_stack", "mask") for place in places for key in place)


@pytest.mark.parametrize("name", ["layerscale", "contranorm"])
def test_blocks_that_run_again_in_another_thread_keep_nothing(name: str) -> None:
    model = model_with(name)
    with ThreadPoolExecutor(1) as pool:  # as autograd has one for a GPU
        pool.submit(loss_of(model).backward).result()
        assert held_by(model) == 0


@pytest.mark.parametrize("name", ["neutreno", "dlcl"])
def test_threads_that_are_gone_keep_nothing(name: str) -> None:
    model = model_with(name, checkpointed=False)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda seed: float(loss_of(model, seed)), range(3)))
    gc.collect()
    with torch.no_grad():
        model(**HOST.call(HOST.inputs()))
    assert held_by(model) == 0


class Slow(WeakKeyDictionary[Any, Any]):
    """Another thread begins a pass, if it can, while this one goes through what all threads hold."""

    begin: Any

    def values(self) -> Any:
        for value in super().values():
            yield value
            other = threading.Thread(target=self.begin)
            other.start()
            other.join(0.1)


def test_a_thread_may_begin_a_pass_while_a_block_runs_again_in_another() -> None:
    shared = Volatile()
    mine = shared.begin()
    shared._threads = Slow(shared._threads)
    shared._threads.begin = shared.begin
    assert mine in shared.every()


def test_a_pass_that_an_error_ends_is_over() -> None:
    model = remedies.apply(BY_NAME["timm_vit"].model(), "neutreno")
    streams = [torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    wanted = model.blocks(streams[1])

    def stop(*_: Any) -> None:
        raise KeyError("enough")

    hook = model.blocks[1].register_forward_pre_hook(stop)
    with pytest.raises(KeyError):
        model.blocks(streams[0])
    hook.remove()
    assert torch.equal(past_the_stack(model, streams[1]), wanted)


def test_nothing_of_a_pass_past_the_stack_without_gradients_is_kept() -> None:
    model = remedies.apply(BY_NAME["timm_vit"].model(), "dlcl")
    with torch.no_grad():
        past_the_stack(model, torch.randn(2, 5, 16))
    assert held_by(model) == 0


class Transparent(nn.Module):
    """Wraps a module, adds nothing, and hands no names on."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


def test_wrappers_in_which_an_edit_still_sees_all_are_let_pass() -> None:
    model = remedies.apply(HOST.model(), "neutreno").eval()
    call = HOST.call(HOST.inputs())
    wanted = model(**call).logits
    first, second, third = (layer.self_attn for layer in model.model.layers)
    first.o_proj = Transparent(first.o_proj)
    second.v_proj = torch.compile(second.v_proj, backend="eager")
    model.model.layers[2].self_attn = Transparent(third)
    torch.testing.assert_close(model(**call).logits, wanted, atol=1e-6, rtol=1e-5)
