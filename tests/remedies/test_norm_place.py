from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everywhere

import unsmooth
from tests.remedies.by_hand import HANDS, Edits, blocks_of, exact, near, streams
from tests.remedies.hosts import BY_NAME, DIM, LAYERS
from tests.remedies.snapshot import Snapshot
from unsmooth import networks
from unsmooth.errors import UnsmoothError
from unsmooth.models.value_projection import value_projection
from unsmooth.remedies import apply

SIZES: dict[str, Any] = {"depth": LAYERS, "dim": DIM, "heads": 4, "hidden": 48}


def styled(name: str, styles: tuple[str, ...], edits: Edits | None = None) -> Tensor:
    """Torch's blocks written out, each with its norms where the word says."""
    plain = exact(name)
    x = streams(name, plain)[0]
    for block, style in zip(blocks_of(plain), styles, strict=True):
        x = dataclasses.replace(HANDS[type(block).__name__](block), style=style)(x, edits or Edits())
    return x


@pytest.mark.parametrize("name", ["torch_post", "torch_tokens_first"])
def test_post_norm_becomes_pre_norm_with_a_final_norm(name: str) -> None:
    model = exact(name)
    before = Snapshot.of(model)
    near(name, streams(name, apply(model, "norm_place", to="pre"))[1], F.layer_norm(styled(name, ("pre",) * 3), (DIM,)))
    before.check(unsmooth.undo(model))
    assert [block.norm_first for block in blocks_of(model)] == [False] * 3
    near(name, streams(name, apply(model, "norm_place", to="pre", final="none"))[1], styled(name, ("pre",) * 3))


def test_pre_norm_becomes_post_norm() -> None:
    model = exact("torch_pre")
    before = Snapshot.of(model)
    near(
        "torch_pre", streams("torch_pre", apply(model, "norm_place", to="post"))[1], styled("torch_pre", ("post",) * 3)
    )
    assert not [key for key, _ in model.named_parameters() if "unsmooth" in key], "nothing to learn"
    before.check(unsmooth.undo(model))
    assert [block.norm_first for block in blocks_of(model)] == [True] * 3


def test_some_layers() -> None:
    model = apply(exact("torch_post"), "norm_place", to="pre", layers=[0, 1])
    near("torch_post", streams("torch_post", model)[1], styled("torch_post", ("pre", "pre", "post")))
    assert not [key for key in model.state_dict() if "final" in key], "the last block still norms what it hands on"


def test_our_networks_become_what_they_are_built_as() -> None:
    image = BY_NAME["own_vit"].inputs()
    pre, post = (
        networks.build(networks.ViTConfig(image=8, patch=4, norm=norm, **SIZES)).eval() for norm in ("pre", "post")
    )
    post.load_state_dict({key: value for key, value in pre.state_dict().items() if key in post.state_dict()})
    with torch.no_grad():
        assert not torch.allclose(streams_of(pre, image), streams_of(post, image))
        assert torch.equal(streams_of(apply(pre, "norm_place", to="post"), image), streams_of(post, image))


def streams_of(model: Any, inputs: Tensor) -> Tensor:
    """What the stack of blocks of one of our networks hands on."""
    found: list[Any] = []
    handle = model.get_submodule("stack").register_forward_hook(lambda module, args, out: found.append(out))
    model(inputs)
    handle.remove()
    return found[0] if isinstance(found[0], Tensor) else found[0][0]


def test_relative_decoders_too() -> None:
    host = BY_NAME["own_decoder_relative"]
    text = {"vocabulary": 50, "length": 40}
    post, pre = (networks.build(networks.DecoderConfig(norm=norm, **SIZES, **text)).eval() for norm in ("post", "pre"))
    pre.load_state_dict({**pre.state_dict(), **post.state_dict()})  # the final norm is the only one more
    with torch.no_grad():
        wanted = host.output(pre, host.call(host.inputs()))
        got = host.output(apply(post, "norm_place", to="pre"), host.call(host.inputs()))
    torch.testing.assert_close(got, wanted)


def test_what_comes_after_sees_the_norms_where_they_stand() -> None:
    model = exact("torch_pre")
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match="before the branches"):
        apply(model, "b2t", weight=0.5)
    apply(apply(model, "norm_place", to="post"), "b2t", weight=0.5)
    edits = Edits(second=lambda x, branch, bottom: 0.5 * bottom + x + branch)
    near("torch_pre", streams("torch_pre", model)[1], styled("torch_pre", ("post",) * 3, edits))
    found = value_projection(model, 1)
    assert found.place == "post"
    assert found.unseen == ("b2t",)
    before.check(unsmooth.undo(model))


@pytest.mark.parametrize(
    ("name", "to", "message"),
    [
        ("bert", "pre", "written into its code"),
        ("neox_parallel", "post", "written into its code"),
        ("own_encoder_peri", "post", "written into its code"),
        ("torch_post", "post", "stand there already"),
        ("own_vit", "pre", "stand there already"),
        ("own_vit", "peri", "Expected to as one of post, pre but got 'peri'"),
    ],
)
def test_what_it_refuses(name: str, to: str, message: str) -> None:
    model = BY_NAME[name].model()
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match=message):
        apply(model, "norm_place", to=to)
    before.check(model)


def test_it_comes_first_and_does_not_fold() -> None:
    model = apply(BY_NAME["torch_pre"].model(), "residual_scaling")
    with pytest.raises(UnsmoothError, match="norm_place comes first"):
        apply(model, "norm_place")
    with pytest.raises(UnsmoothError, match="no weights move a norm"):
        unsmooth.fold(apply(BY_NAME["torch_pre"].model(), "norm_place"))
