"""Shares of branches against norms worked out by hand, in float64 and without hooks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.errors import UnsmoothError
from unsmooth.evidence.branches import branch_shares
from unsmooth.networks import Encoder, EncoderConfig, ViT, ViTConfig

SMALL = {"depth": 3, "dim": 12, "heads": 2, "hidden": 24}


def _normed(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred / (variance + norm.eps).sqrt() * norm.weight.double() + norm.bias.double()


def _linear(x: Tensor, layer: nn.Linear) -> Tensor:
    return x @ layer.weight.double().T + layer.bias.double()


def _attended(x: Tensor, attention: nn.Module, heads: int, seen: Tensor | None) -> Tensor:
    width = x.shape[-1] // heads
    query, key, value = _linear(x, attention.qkv).chunk(3, dim=-1)
    parts = []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        logits = query[..., own] @ key[..., own].transpose(-2, -1) / width**0.5
        if seen is not None:
            logits = logits.masked_fill(~seen[:, None, :], -torch.inf)
        parts.append(torch.softmax(logits, dim=-1) @ value[..., own])
    return _linear(torch.cat(parts, dim=-1), attention.out)


def _by_hand(x: Tensor, blocks: nn.ModuleList, style: str, seen: Tensor | None = None) -> list[dict[str, float]]:
    """The blocks written out once more, with the ratio taken at both additions."""

    def share(branch: Tensor, stream: Tensor) -> float:
        ratio = branch.norm(dim=-1) / stream.norm(dim=-1)
        return (ratio if seen is None else ratio[seen]).mean().item()

    found = []
    for block in blocks:
        read = x if style == "post" else _normed(x, block.norm_attention)
        branch = _attended(read, block.attention, 2, seen)
        branch = _normed(branch, block.norm_attention_out) if style == "peri" else branch
        attention = share(branch, x)
        x = x + branch
        x = _normed(x, block.norm_attention) if style == "post" else x
        hidden = F.gelu(_linear(x if style == "post" else _normed(x, block.norm_mlp), block.mlp.up))
        branch = _linear(hidden, block.mlp.down)
        branch = _normed(branch, block.norm_mlp_out) if style == "peri" else branch
        found.append({"attention": attention, "mlp": share(branch, x)})
        x = x + branch
        x = _normed(x, block.norm_mlp) if style == "post" else x
    return found


def _close(found: list[dict[str, float]], wanted: list[dict[str, float]]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, rel=2e-5)


def _perturbed(model: nn.Module) -> nn.Module:
    """Norms and biases away from 1 and 0, so that nothing drops out by chance."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("style", ["pre", "post", "peri"])
def test_branches_of_images(style: str) -> None:
    model = _perturbed(ViT(ViTConfig(**SMALL, norm=style, image=8, patch=4, classes=5, drop_path=0.5, dropout=0.5)))
    model.train()
    images = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    found = branch_shares(model, [images[:2], images[2:]])
    assert model.training  # left as it was, though measured without dropping anything
    model.eval()
    with torch.no_grad():
        _close(found, _by_hand(model.embedded(images, None).double(), model.stack.blocks, style))


def test_padding_is_left_out() -> None:
    model = _perturbed(Encoder(EncoderConfig(**SMALL, vocabulary=11, length=6))).eval()
    ids = torch.randint(0, 11, (3, 6), generator=torch.Generator().manual_seed(2))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0]])
    entered: list[Tensor] = []
    with torch.no_grad():
        model.stack.blocks[0].register_forward_pre_hook(lambda block, args: entered.append(args[0]))
        found = branch_shares(model, [{"input_ids": ids, "attention_mask": mask}])
        _close(found, _by_hand(entered[0].double(), model.stack.blocks, "pre", mask.bool()))


def test_two_branches_side_by_side_add_to_the_same_stream() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPTNeoXConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=10
    )
    model = transformers.GPTNeoXModel(config).eval()
    layer = model.layers[1]
    seen: dict[str, Tensor] = {}
    layer.register_forward_pre_hook(lambda module, args, kwargs: seen.update(x=args[0]), with_kwargs=True)
    layer.mlp.register_forward_hook(lambda module, args, output: seen.update(mlp=output))
    found = branch_shares(model, [torch.tensor([[1, 2, 3]])])
    assert found[1]["mlp"] == pytest.approx((seen["mlp"].norm(dim=-1) / seen["x"].norm(dim=-1)).mean().item(), rel=1e-5)


def test_what_cannot_be_measured_is_said() -> None:
    model = ViT(ViTConfig(**SMALL, image=8, patch=4, classes=5))
    with pytest.raises(UnsmoothError, match="a batch at least"):
        branch_shares(model, [])
    with pytest.raises(UnsmoothError, match="blocks"):
        branch_shares(nn.Linear(2, 2), [torch.zeros(1, 2)])
