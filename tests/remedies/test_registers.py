from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.remedies.by_hand import HANDS, Edits, blocks_of, exact, near, streams
from tests.remedies.hosts import BY_NAME
from tests.remedies.snapshot import Snapshot
from unsmooth.errors import UnsmoothError
from unsmooth.models import find_anatomy

HOSTS = ("vit", "bert", "torch_pre", "torch_tokens_first")


def entered(name: str, model: nn.Module) -> Tensor:
    """What enters the first block, before registers are there."""
    return streams(name, model)[0]


def by_hand(name: str, plain: nn.Module, tokens: Tensor, layers: slice = slice(None)) -> list[Tensor]:
    """What each block hands on, registers and all, from float64 blocks written out."""
    x, handed = entered(name, plain), []
    last = range(len(blocks_of(plain)))[layers][-1]
    for index, block in enumerate(blocks_of(plain)):
        if index == (layers.start or 0):
            x = torch.cat([x, tokens.expand(len(x), -1, -1)], dim=1)
        x = HANDS[type(block).__name__](block)(x, Edits())
        if index == last:
            x = x[:, : -tokens.shape[0]]
        handed.append(x)
    return handed


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("layers", [slice(None), slice(1, 3), slice(0, 2)])
def test_registers_take_part_between_the_first_block_and_the_last(name: str, layers: slice) -> None:
    model = unsmooth.apply(exact(name), "registers", count=3, std=1.0, layers=layers)
    tokens = blocks_of(model)[layers.start or 0].unsmooth.registers.tokens
    assert tokens.shape == (3, 32)
    near(name, streams(name, model)[1], by_hand(name, exact(name), tokens, layers)[-1])


def test_they_learn_and_only_the_first_block_has_them() -> None:
    model = unsmooth.apply(exact("vit"), "registers")
    new = {key: value for key, value in model.named_parameters() if "unsmooth" in key}
    assert list(new) == ["layers.0.unsmooth.registers.tokens"]
    (tokens,) = new.values()
    assert tokens.std().item() == pytest.approx(1e-6, rel=0.2)
    streams("vit", model)[1].square().sum().backward()
    assert tokens.grad.ne(0).all()


@pytest.mark.parametrize("name", HOSTS)
def test_a_scan_does_not_count_them(name: str) -> None:
    """Layers and sites as they are by hand without the registers, and every other token in its place."""
    model = unsmooth.apply(exact(name), "registers", count=3, std=1.0)
    seen: dict[tuple[int, str], Tensor] = {}
    anatomy = find_anatomy(model)
    with anatomy.watch(lambda layer, site, x: seen.__setitem__((layer, site), x), anatomy.sites), torch.no_grad():
        streams(name, model)
    hands = by_hand(name, exact(name), blocks_of(model)[0].unsmooth.registers.tokens)
    near(name, seen[0, "residual"], entered(name, exact(name)))
    for layer, handed in enumerate(hands, start=1):
        near(name, seen[layer, "residual"], handed[:, : seen[0, "residual"].shape[1]])
    assert {x.shape for x in seen.values()} == {seen[0, "residual"].shape}


@torch.no_grad()
@pytest.mark.parametrize(("name", "prefix"), [("vit", 1), ("torch_pre", 0)])
def test_numbers_of_a_scan_are_those_of_the_other_tokens(name: str, prefix: int) -> None:
    host = BY_NAME[name]
    model = unsmooth.apply(host.model(), "registers", count=3, std=1.0)
    hands = by_hand(name, exact(name), blocks_of(model)[0].unsmooth.registers.tokens.double())
    batch = host.inputs() if name == "torch_pre" else host.call(host.inputs())
    frame = unsmooth.scan(model, [batch], metrics=["mean_cosine"], progress=False).to_frame()
    tokens = hands[-1].shape[1]
    wanted = [entered(name, exact(name)), *(handed[:, :tokens] for handed in hands)]
    for x, found in zip(wanted, frame["mean"], strict=True):
        unit = nn.functional.normalize(x[:, prefix:], dim=-1)
        count = unit.shape[1]
        cosine = ((unit @ unit.mT).sum(dim=(1, 2)) - count) / (count * (count - 1))
        assert found == pytest.approx(float(cosine.mean()), abs=1e-5)
    assert set(frame["tokens"]) == {2 * (tokens - prefix)}


def test_maps_and_explanations_say_why_not() -> None:
    model = unsmooth.apply(BY_NAME["vit"].model(), "registers")
    batch = BY_NAME["vit"].call(BY_NAME["vit"].inputs())
    with pytest.raises(UnsmoothError, match="tokens that a remedy brought"):
        unsmooth.explain(model, [batch])
    with pytest.raises(UnsmoothError, match="tokens that a remedy brought"):
        unsmooth.scan(model, [batch], metrics=["attention_entropy"], progress=False)
    assert len(unsmooth.explain(model).layers) == 3
    assert "registers" in str(unsmooth.explain(model).layers[0])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt2", "none would see tokens behind the last"),
        ("albert", "called again and again"),
        ("mpnet", "told 'position_bias' from outside"),
    ],
)
def test_hosts_without_a_place_for_them_are_refused(name: str, message: str) -> None:
    refused(BY_NAME[name].model(), message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": -1}, "Expected count as a whole number between 0 and 1024"),
        ({"count": 2.0}, "Expected count as a whole number"),
        ({"std": -1.0}, "Expected std between 0.0 and 10.0"),
        ({"layers": [0, 2]}, r"Expected layers that follow each other but got layers=\[0, 2\]"),
    ],
)
def test_bad_options_leave_the_model_alone(options: dict[str, Any], message: str) -> None:
    refused(BY_NAME["vit"].model(), message, **options)


def refused(model: nn.Module, message: str, **options: Any) -> None:
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match=message):
        unsmooth.apply(model, "registers", **options)
    before.check(model)


def test_masks_are_refused_and_the_model_goes_on() -> None:
    host = BY_NAME["torch_pre"]
    model = unsmooth.apply(host.model(), "registers")
    x, square = host.inputs(), torch.zeros(8, 8)
    square[0, 1] = float("-inf")
    for masks in ({"mask": square}, {"src_key_padding_mask": torch.arange(8).expand(2, 8) > 5}):
        with pytest.raises(UnsmoothError, match="without padding or masks"):
            model(x, **masks)
    with pytest.raises(UnsmoothError):
        model(x, mask=nn.Transformer.generate_square_subsequent_mask(8), is_causal=True)
    assert model(x).shape == x.shape


def test_other_remedies_keep_working_in_any_order() -> None:
    """A block's output is edited before tokens are dropped from it, whichever remedy was first."""
    wanted = None
    for order in (("registers", "b2t"), ("b2t", "registers")):
        model = exact("bert")
        for remedy in order:
            options: dict[str, Any] = {"norm": "drop"} if remedy == "b2t" else {"count": 2, "std": 0.0}
            unsmooth.apply(model, remedy, **options)
        got = streams("bert", model)[1]
        wanted = got if wanted is None else wanted
        assert got.shape == (2, 8, 32)
        near("bert", got, wanted)


HANDING_ON = ("dlcl", "neutreno", "value_residual")


@pytest.mark.parametrize("name", HANDING_ON)
@pytest.mark.parametrize("registers_first", [True, False])
def test_blocks_that_hand_on_tokens_have_the_same(name: str, registers_first: bool) -> None:
    """In either order, before anything is touched."""
    model = BY_NAME["vit"].model()
    steps: list[tuple[str, Any]] = [("registers", slice(1, 3)), (name, None)]
    (below, below_layers), (above, layers) = steps if registers_first else steps[::-1]
    unsmooth.apply(model, below, layers=below_layers)
    before = Snapshot.of(model)
    with pytest.raises(
        UnsmoothError, match=rf"Expected the same tokens in all blocks of {name}.*layers\.0' and 'layers\.1'"
    ):
        unsmooth.apply(model, above, layers=layers)
    before.check(model)


@pytest.mark.parametrize("name", HANDING_ON)
def test_registers_of_two_runs_of_blocks_are_other_tokens(name: str) -> None:
    model = unsmooth.apply(BY_NAME["vit"].model(), "registers", layers=slice(0, 1))
    unsmooth.apply(model, "registers", layers=slice(1, 3))
    with pytest.raises(UnsmoothError, match=f"Expected the same tokens in all blocks of {name}"):
        unsmooth.apply(model, name)


@pytest.mark.parametrize("name", HANDING_ON)
@pytest.mark.parametrize("registers", [{"layers": slice(1, 3)}, {}, {"count": 0, "layers": slice(0, 1)}])
@pytest.mark.parametrize("registers_first", [True, False])
def test_within_registers_they_hand_on(name: str, registers: dict[str, Any], registers_first: bool) -> None:
    model = BY_NAME["vit"].model()
    steps: list[tuple[str, dict[str, Any]]] = [("registers", registers), (name, {"layers": slice(1, 3)})]
    for remedy, options in steps if registers_first else steps[::-1]:
        unsmooth.apply(model, remedy, **options)
    host = BY_NAME["vit"]
    with torch.no_grad():
        assert host.output(model, host.call(host.inputs())).isfinite().all()
