from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.remedies.hosts import BY_NAME, DIM
from tests.remedies.snapshot import Snapshot
from unsmooth import remedies
from unsmooth.remedies.block import remedies_of, stack_of


def out(host: str, model: nn.Module, **call: object) -> Tensor:
    entry = BY_NAME[host]
    with torch.no_grad():
        return entry.output(model, {**entry.call(entry.inputs()), **call})


def test_what_was_applied_is_told_in_order() -> None:
    model = BY_NAME["bert"].model()
    assert remedies.applied(model) == []
    assert remedies.apply(model, "deescalate", layers=[1, 2], tau=0.5) is model
    remedies.apply(model, "residual_scaling", layers=0.4)
    remedies.apply(model, "sharpen", layers=-1)
    found = remedies.applied(model)
    assert [(one.name, one.layers) for one in found] == [
        ("deescalate", (1, 2)),
        ("residual_scaling", (0,)),
        ("sharpen", (2,)),
    ]
    assert found[0].options["tau"] == 0.5
    assert found[0].options["place"] == "attention"  # defaults are told too
    assert found[2].report[2]


def test_the_order_of_applying_is_the_order_of_acting() -> None:
    """(I − Π)(a/2) is the same as (I − Π)a/2, but a mean with a prior is not; so scale by the block's own algebra."""
    host = BY_NAME["vit"]
    plain = host.model()
    seen: list[Tensor] = []
    plain.layers[0].attention.register_forward_hook(lambda module, args, output: seen.append(output[0]))
    out("vit", plain)
    branch = seen[0].double()
    for names in (("featscale", "deescalate"), ("deescalate", "featscale")):
        model = host.model()
        options = {"featscale": {"dc": 1.0, "hc": 0.0, "learn": "no"}, "deescalate": {"tau": 0.5}}
        for name in names:
            remedies.apply(model, name, layers=[0], **options[name])
        found: list[Tensor] = []
        model.layers[0].attention.register_forward_hook(lambda module, args, output, to=found: to.append(output[0]))
        out("vit", model)
        mean, wanted = branch.mean(1, keepdim=True), branch.clone()
        for name in names:
            wanted = wanted + mean if name == "featscale" else wanted - 0.5 * mean
            mean = wanted.mean(1, keepdim=True)
        torch.testing.assert_close(found[0].double(), wanted, atol=1e-5, rtol=1e-5)


def test_undo_keeps_what_was_trained_elsewhere() -> None:
    model = BY_NAME["bert"].model()
    before = Snapshot.of(model)
    remedies.apply(model, "deescalate", learn="layer")
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight.add_(1.0)
    remedies.undo(model)
    before.check_form(model)
    moved = model.encoder.layer[0].output.dense.weight - before.state["encoder.layer.0.output.dense.weight"]
    torch.testing.assert_close(moved, torch.ones_like(moved), atol=1e-5, rtol=0)


@pytest.mark.parametrize("host", ["bert", "gpt2", "torch_post"])
def test_undo_of_nothing_is_nothing(host: str) -> None:
    model = BY_NAME[host].model()
    before = Snapshot.of(model)
    assert remedies.undo(model) is model
    before.check(model)


def test_an_edit_is_in_the_mode_and_dtype_of_its_block() -> None:
    model = BY_NAME["llama"].model().to(torch.bfloat16).train()
    remedies.apply(model, "deescalate", learn="channel")
    edit = remedies_of(model.model.layers[0]).edits()["deescalate"]
    assert edit.training
    assert edit.tau.dtype == torch.bfloat16
    assert not remedies_of(model.eval().model.layers[0]).edits()["deescalate"].training


@pytest.mark.parametrize("before_it", [True, False])
@pytest.mark.parametrize("host", ["neox_parallel", "bert", "vit"])
def test_hidden_states_are_those_that_are_handed_on(host: str, before_it: bool) -> None:
    model = BY_NAME[host].model()
    call = {**BY_NAME[host].call(BY_NAME[host].inputs()), "output_hidden_states": True}
    if before_it:  # transformers puts its hooks in when it is first asked
        model(**call)
    remedies.apply(model, "deescalate", place="residual", tau=0.9)
    entered: list[Tensor] = []
    blocks = (
        model.gpt_neox.layers if host == "neox_parallel" else model.layers if host == "vit" else model.encoder.layer
    )
    for block in blocks:
        block.register_forward_pre_hook(lambda module, args: entered.append(args[0]))
    hidden = model(**call).hidden_states
    for told, seen in zip(hidden, entered, strict=False):
        torch.testing.assert_close(told, seen, atol=0, rtol=0)


def test_one_of_two_stacks() -> None:
    both = nn.ModuleDict({"one": BY_NAME["bert"].model(), "two": BY_NAME["bert"].model(1)})
    before = Snapshot.of(both)
    pattern = "two.encoder.layer.*"
    remedies.apply(both, "deescalate", blocks=pattern)
    assert torch.equal(out("bert", both["one"]), out("bert", BY_NAME["bert"].model()))
    assert not torch.allclose(out("bert", both["two"]), out("bert", BY_NAME["bert"].model(1)))
    assert remedies.applied(both, blocks=pattern)[0].layers == (0, 1, 2)
    remedies.undo(both, blocks=pattern)
    before.check(both)


@pytest.mark.parametrize(
    ("host", "path"),
    [
        ("bert", "encoder"),
        ("albert", "encoder"),
        ("gpt2", "transformer"),
        ("llama", "model"),
        ("vit", ""),
        ("torch_post", ""),
    ],
)
def test_a_stack_runs_its_blocks_in_one_call(host: str, path: str) -> None:
    from unsmooth.models import find_anatomy

    model = BY_NAME[host].model()
    stack = stack_of(model, list(find_anatomy(model).blocks))
    assert stack is model.get_submodule(path)
    calls: list[int] = []
    stack.register_forward_hook(lambda module, args, output: calls.append(1))
    out(host, model)
    assert calls == [1]


def test_a_model_within_a_model() -> None:
    wrapped = nn.Sequential(nn.Identity(), BY_NAME["torch_post"].model())
    remedies.apply(wrapped, "neutreno")
    alone = remedies.apply(BY_NAME["torch_post"].model(), "neutreno")
    x = BY_NAME["torch_post"].inputs()
    with torch.no_grad():
        torch.testing.assert_close(wrapped(x), alone(x))


def test_blocks_by_themselves() -> None:
    """A block that is called outside its model acts as it does inside."""
    model = remedies.apply(BY_NAME["torch_pre"].model(), "deescalate", tau=0.5)
    x = torch.randn(2, 5, DIM, generator=torch.Generator().manual_seed(0))
    block, entered = model.layers[1], []
    block.register_forward_hook(lambda module, args, output: entered.append((args[0], output)))
    with torch.no_grad():
        model(x)
        torch.testing.assert_close(block(entered[0][0]), entered[0][1])


@pytest.mark.parametrize("boolean", [True, False])
@pytest.mark.parametrize("is_causal", [None, True, False])
def test_a_causal_mask_is_seen_in_every_form(boolean: bool, is_causal: bool | None) -> None:
    model = remedies.apply(BY_NAME["torch_pre"].model(), "deescalate", tau=1.0)
    mask = nn.Transformer.generate_square_subsequent_mask(8)
    x = BY_NAME["torch_pre"].inputs()
    other = x.clone()
    other[:, 5] += 1.0
    how = {"mask": mask == -torch.inf if boolean else mask, "is_causal": is_causal}
    with torch.no_grad():
        moved = (model(x, **how) - model(other, **how)).abs().amax((0, 2))
    assert moved[:5].max() == 0
    assert moved[5:].min() > 0


def test_folding_some_layers() -> None:
    model = remedies.apply(BY_NAME["gpt2"].model(), "residual_scaling", layers=[1], scale=0.25)
    remedies.apply(model, "sharpen", layers=[1, 2])
    wanted = out("gpt2", model)
    remedies.fold(model)
    torch.testing.assert_close(out("gpt2", model), wanted, atol=1e-5, rtol=1e-4)
    Snapshot.of(BY_NAME["gpt2"].model()).check_form(model, copied=True)
    plain = BY_NAME["gpt2"].model().state_dict()
    kept = [key for key, value in model.state_dict().items() if torch.equal(value, plain[key])]
    assert all(key in kept for key in plain if ".h.0." in key)


def test_a_description_has_every_option_and_number() -> None:
    for name in remedies.names():
        found = remedies.describe(name)
        text = str(found)
        assert found.name == name
        assert all(f"\n  {option.name}=" in text for option in found.options)
        assert all(word.strip() for word in (found.summary, found.paper, found.equation, found.cost))
