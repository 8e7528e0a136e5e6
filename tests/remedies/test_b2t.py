from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.remedies.by_hand import POST, PRE, Edits, blocks_of, by_hand, exact, gradients_near, near, streams
from tests.remedies.hosts import BY_NAME
from tests.remedies.snapshot import Snapshot
from unsmooth.errors import UnsmoothError

# Three layers of width 32: 3/12 is less than 3^-0.15, and 32^-0.2 is a half.
BOTTOM, TOP = 0.25, 0.5


def again(weight: float) -> Edits:
    return Edits(second=lambda x, m, bottom: weight * bottom + x + m)


@pytest.mark.parametrize("name", POST)
@pytest.mark.parametrize("weight", [None, 0.4])
def test_the_input_is_added_in_front_of_the_last_norm(name: str, weight: float | None) -> None:
    plain, model = exact(name), unsmooth.apply(exact(name), "b2t", weight=weight)
    near(name, streams(name, model)[1], by_hand(name, plain, again(weight or 1.0)))


@pytest.mark.parametrize("name", POST)
@pytest.mark.parametrize(("options", "bottom", "top"), [({}, BOTTOM, TOP), ({"weight": 0.8, "scale": 0.9}, 0.8, 0.9)])
def test_form_without_norms(name: str, options: dict[str, float], bottom: float, top: float) -> None:
    plain, model = exact(name), unsmooth.apply(exact(name), "b2t", norm="drop", **options)
    wanted = Edits(norms=False, out=lambda out, x: bottom * x + top * out)
    near(name, streams(name, model)[1], by_hand(name, plain, wanted))
    gradients_near(name, model, plain, wanted)


def test_weight_without_norms_in_a_deep_model() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = unsmooth.apply(nn.TransformerEncoder(layer, 20, enable_nested_tensor=False), "b2t", norm="drop", layers=0)
    assert model.layers[0].unsmooth.b2t.weight == pytest.approx(20**-0.15, rel=1e-12)  # less than 20/12


@pytest.mark.parametrize("name", ["bert", "torch_tokens_first"])
def test_gradients(name: str) -> None:
    gradients_near(name, unsmooth.apply(exact(name), "b2t"), exact(name), again(1.0))


@pytest.mark.parametrize("name", POST)
def test_official_start_multiplies_every_matrix(name: str) -> None:
    plain = BY_NAME[name].model()
    model = unsmooth.apply(copy.deepcopy(plain), "b2t", variant="official")
    count = 0
    for was, now in zip(blocks_of(plain), blocks_of(model), strict=True):
        got = dict(now.named_parameters())
        for key, weight in was.named_parameters():
            wanted = (weight.double() * 3**-0.5).float() if weight.ndim == 2 else weight
            torch.testing.assert_close(got[key], wanted)
            count += weight.ndim == 2
    # Queries, keys and values may be one matrix.
    assert count == {"bert": 18, "albert": 6}.get(name, 12)


def test_the_input_is_added_after_dropout() -> None:
    model = BY_NAME["bert"].model().train()
    unsmooth.apply(model, "b2t")
    block, seen = blocks_of(model)[1], {}
    for module in block.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    block.register_forward_pre_hook(lambda module, args: seen.update(bottom=args[0]))
    block.attention.output.register_forward_hook(lambda module, args, out: seen.update(middle=out))
    block.output.dropout.register_forward_hook(lambda module, args, out: seen.update(branch=out))
    block.output.LayerNorm.register_forward_pre_hook(lambda module, args: seen.update(sum=args[0]))
    model(**BY_NAME["bert"].call(BY_NAME["bert"].inputs()))
    assert (seen["branch"] == 0.0).float().mean() > 0.3
    torch.testing.assert_close(seen["sum"], seen["bottom"] + seen["middle"] + seen["branch"])


@pytest.mark.parametrize("name", [*PRE, "neox_parallel"])
def test_pre_norm_blocks_are_refused(name: str) -> None:
    model = BY_NAME[name].model()
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match="norms before the branches"):
        unsmooth.apply(model, "b2t")
    before.check(model)


def test_norms_are_dropped_all_or_none() -> None:
    """Cross-attention has a norm of its own, which would stay."""
    model = BY_NAME["torch_decoder_post"].model()
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match="cross-attention adds to the stream too, and would keep its norm"):
        unsmooth.apply(model, "b2t", norm="drop")
    before.check(model)
    unsmooth.apply(model, "b2t")


@pytest.mark.parametrize("name", ["bert", "albert", "torch_post"])
def test_neutral_and_undo(name: str) -> None:
    plain = exact(name)
    near_bits = streams(name, plain)[1]
    assert torch.equal(streams(name, unsmooth.apply(exact(name), "b2t", weight=0.0))[1], near_bits)
    for options in ({}, {"norm": "drop"}, {"variant": "official"}, {"norm": "drop", "variant": "official"}):
        model = exact(name)
        before = Snapshot.of(model)
        unsmooth.apply(model, "b2t", **options)
        streams(name, model)
        before.check(unsmooth.undo(model))


def test_plain_checkpoints_load_where_norms_were_dropped() -> None:
    other = exact("torch_post")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    model = unsmooth.apply(exact("torch_post"), "b2t", norm="drop")
    model.load_state_dict(other.state_dict())
    wanted = Edits(norms=False, out=lambda out, x: BOTTOM * x + TOP * out)
    near("torch_post", streams("torch_post", model)[1], by_hand("torch_post", other, wanted))
    again = unsmooth.apply(exact("torch_post"), "b2t", norm="drop")
    again.load_state_dict(model.state_dict())
    assert torch.equal(streams("torch_post", again)[1], streams("torch_post", model)[1])
    # The norms of the checkpoint come back, not those that were dropped.
    Snapshot.of(other).check(unsmooth.undo(model), copied=True)


def test_does_not_fold() -> None:
    model = unsmooth.apply(BY_NAME["bert"].model(), "b2t")
    with pytest.raises(UnsmoothError, match="but got b2t"):
        unsmooth.fold(model)


def test_the_input_is_no_part_of_the_branch() -> None:
    def scaled(x: Tensor, m: Tensor, bottom: Tensor) -> Tensor:
        return bottom + x + 0.5 * m

    wanted = by_hand("bert", exact("bert"), Edits(first=lambda x, a: x + 0.5 * a, second=scaled))
    for names in (("b2t", "residual_scaling"), ("residual_scaling", "b2t")):
        model = exact("bert")
        for name in names:
            unsmooth.apply(model, name, **({"scale": 0.5} if name == "residual_scaling" else {}))
        near("bert", streams("bert", model)[1], wanted)


def test_norms_that_another_remedy_rests_on_stay() -> None:
    model = unsmooth.apply(BY_NAME["bert"].model(), "deepnorm", init="keep")
    with pytest.raises(UnsmoothError, match="deepnorm rests on the norms"):
        unsmooth.apply(model, "b2t", norm="drop")
    unsmooth.apply(model, "b2t")
    model = unsmooth.apply(BY_NAME["bert"].model(), "b2t")
    with pytest.raises(UnsmoothError, match="b2t rests on the norms"):
        unsmooth.apply(model, "rezero")
