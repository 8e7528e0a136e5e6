"""Several images in one row, as towers for images of any size have them: each sample's tokens are its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.remedies.snapshot import Snapshot
from unsmooth import remedies, scan
from unsmooth.errors import UnsmoothError
from unsmooth.models import find_anatomy, value_projection, watch_attention

PATCH = 3 * 2 * 4 * 4


def tower() -> nn.Module:
    """Qwen2-VL's: blocks take (tokens, dim) and cu_seqlens; no norm or bias is neutral."""
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"depth": 3, "embed_dim": 16, "hidden_size": 8, "num_heads": 2, "patch_size": 4}
    model = Qwen2VisionTransformerPretrainedModel(Qwen2VLVisionConfig(**sizes))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model.eval()


def images(*sides: tuple[int, int]) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    patches = torch.randn(sum(height * width for height, width in sides), PATCH, generator=draw)
    return {"hidden_states": patches, "grid_thw": torch.tensor([[1, *side] for side in sides])}


SIDES = ((2, 4), (4, 4), (2, 2))


def outputs(model: nn.Module, batch: dict[str, Tensor], path: str = "blocks.2") -> Tensor:
    """What the last block hands on, (tokens, dim), or another module."""
    seen: list[Tensor] = []
    with torch.no_grad(), model.get_submodule(path).register_forward_hook(lambda *args: seen.append(args[-1].clone())):
        model(**batch)
    return seen[0]


# What goes by attention's own map, of which there is one for each image, and brings no other.
BY_MAP = ("differential", "gfsa", "talking_heads")
# What no block of this kind can have: it is pre-norm by its code, not causal, and told the places of its tokens.
OTHERS = ("admin", "b2t", "deepnorm", "norm_place", "registers", "spa")


@pytest.mark.parametrize("name", sorted({*remedies.names()} - {*BY_MAP, *OTHERS}))
def test_an_image_is_the_same_alone_and_beside_others(name: str) -> None:
    model, batch, start = tower(), images(*SIDES), 0
    plain = outputs(model, batch)
    remedies.apply(model, name, batch=batch)
    together = outputs(model, batch)
    for side in SIDES:
        own = slice(start, start + side[0] * side[1])
        one = {"hidden_states": batch["hidden_states"][own], "grid_thw": torch.tensor([[1, *side]])}
        torch.testing.assert_close(outputs(model, one), together[own], atol=1e-5, rtol=1e-4)
        start = own.stop
    remedies.undo(model)
    assert torch.equal(outputs(model, batch), plain)


@pytest.mark.parametrize("name", [*BY_MAP, *OTHERS])
def test_what_such_blocks_cannot_have_is_refused(name: str) -> None:
    model = tower()
    before = Snapshot.of(model)
    why = "several sequences in one row, each with a map of its own" if name in BY_MAP else "cannot be applied"
    with pytest.raises(UnsmoothError, match=why):
        remedies.apply(model, name, batch=images(*SIDES))
    before.check(model)


def test_a_mean_is_taken_from_each_image() -> None:
    model, batch, last = tower(), images(*SIDES), "blocks.2.attn"
    plain = outputs(model, batch, last)
    remedies.apply(model, "deescalate", tau=0.5, layers=[2], batch=batch)
    lengths = [height * width for height, width in SIDES]
    wanted = torch.cat([one - 0.5 * one.mean(dim=0) for one in plain.split(lengths)])
    torch.testing.assert_close(outputs(model, batch, last), wanted, atol=1e-5, rtol=1e-5)


def test_maps_and_value_weights_rebuild_attention_of_each_image() -> None:
    model, batch, maps, given, gave = tower(), images(*SIDES), dict[int, Tensor](), [], []
    attention = model.get_submodule("blocks.0.attn")
    attention.register_forward_pre_hook(lambda module, args: given.append(args[0]))
    attention.register_forward_hook(lambda module, args, output: gave.append(output))
    with torch.no_grad(), watch_attention(find_anatomy(model), maps.__setitem__):
        model(**batch)
    values = value_projection(model, 0)
    lengths = [height * width for height, width in SIDES]
    x_BND = nn.utils.rnn.pad_sequence(list(given[-1].split(lengths)), batch_first=True)
    rebuilt = values.attention_output(maps[1], x_BND)
    for one, length, wanted in zip(rebuilt, lengths, gave[-1].split(lengths), strict=True):
        torch.testing.assert_close(one[:length], wanted, atol=1e-5, rtol=1e-5)


def test_what_a_scan_has_seen_needs_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unsmooth.models.wire.standard_batch", lambda model: {"nothing": torch.zeros(1)})
    refused, model, batch = tower(), tower(), images((2, 4), (4, 4))
    with pytest.raises(UnsmoothError, match=r"not called in a pass .* Try unsmooth.apply\(..., batch=...\)"):
        remedies.apply(refused, "sharpen")
    remedies.apply(refused, "sharpen", batch=batch)
    scan(model, batch, progress=False)
    remedies.apply(model, "sharpen")
    assert torch.equal(outputs(model, batch), outputs(refused, batch))


def test_a_batch_that_the_model_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unsmooth.models.wire.standard_batch", lambda model: {"nothing": torch.zeros(1)})
    model = tower()
    with pytest.raises(UnsmoothError, match=r"batch that Qwen2Vision.* can be called with but got its TypeError"):
        remedies.apply(model, "sharpen", batch={"pixels": torch.zeros(2)})


def test_without_a_batch_the_tower_says_itself_what_it_takes() -> None:
    batch = images((2, 4), (4, 4))
    with_batch, without = (remedies.apply(tower(), "sharpen", batch=one) for one in (batch, None))
    assert torch.equal(outputs(with_batch, batch), outputs(without, batch))


class Attention(nn.Module):
    """Of texts in one row, each token sees those before it in its own."""

    def __init__(self) -> None:
        super().__init__()
        self.is_causal = True
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x_ND: Tensor, lengths: list[int]) -> Tensor:
        heads = [one(x_ND).unflatten(-1, (2, 4)).transpose(0, 1)[None] for one in (self.q, self.k, self.v)]
        parts = zip(*(one.split(lengths, dim=2) for one in heads), strict=True)
        mixed = [nn.functional.scaled_dot_product_attention(*part, is_causal=True) for part in parts]
        return self.out(torch.cat(mixed, dim=2)[0].transpose(0, 1).flatten(1))


class CausalBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attn = nn.LayerNorm(8), nn.LayerNorm(8), Attention()
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), cu_seqlens.diff().tolist())
        return x + self.mlp(self.norm2(x))


class Texts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([CausalBlock() for _ in range(3)])

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, cu_seqlens)
        return x


@pytest.mark.parametrize("name", ["deescalate", "centred", "attnscale", "contranorm", "pairnorm", "sharpen"])
def test_texts_in_one_row_hide_the_future_and_each_other(name: str) -> None:
    torch.manual_seed(0)
    model, x, bounds = Texts().eval(), torch.randn(9, 8), torch.tensor([0, 4, 9])
    remedies.apply(model, name, batch=(x, bounds))
    other = x.clone()
    other[6] = torch.randn(8)
    with torch.no_grad():
        before, after, alone = model(x, bounds), model(other, bounds), model(x[4:], torch.tensor([0, 5]))
    torch.testing.assert_close(before[:6], after[:6])
    torch.testing.assert_close(before[4:], alone)
    assert not torch.allclose(before[7], after[7])
    with pytest.raises(UnsmoothError, match="lets a token see later ones"):
        remedies.apply(model, "softdecay", batch=(x, bounds))
