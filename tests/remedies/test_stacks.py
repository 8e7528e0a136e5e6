"""Models of several stacks: all of them or one by name, layers counted in each, saved and undone the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.remedies.hosts import BY_NAME, VOCAB
from tests.remedies.snapshot import Snapshot
from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.models import find_stacks
from unsmooth.models.remedied import edits_of
from unsmooth.remedies.specification import apply_wishes, parse_remedies


def clip(seed: int = 0) -> Any:
    sizes = {"num_attention_heads": 2, "intermediate_size": 24, "projection_dim": 8}
    text = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": VOCAB, "max_position_embeddings": 16}
    vision = {"hidden_size": 24, "num_hidden_layers": 3, "image_size": 8, "patch_size": 4}
    torch.manual_seed(seed)
    config = transformers.CLIPConfig(
        text_config={**sizes, **text, "eos_token_id": 4}, vision_config={**sizes, **vision}, projection_dim=8
    )
    return transformers.CLIPModel(config).eval()


@torch.no_grad()
def embeddings(model: Any) -> tuple[Tensor, Tensor]:
    """Of texts and images."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, VOCAB, (2, 6), generator=generator)
    out = model(input_ids=ids, pixel_values=torch.randn(2, 3, 8, 8, generator=generator))
    return out.text_embeds, out.image_embeds


def where(model: nn.Module) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(one.name, one.stack, one.layers) for one in remedies.applied(model)]


def test_one_stack_or_all() -> None:
    model = clip()
    before, (text, image) = Snapshot.of(model), embeddings(model)
    remedies.apply(model, "deescalate", stack="vision", layers=[-1], tau=0.5)
    assert where(model) == [("deescalate", "vision", (2,))]
    changed = embeddings(model)
    assert torch.equal(changed[0], text)
    assert not torch.equal(changed[1], image)
    remedies.apply(model, "neutreno")  # from the first values of each tower, which differ in width
    assert where(model)[1:] == [("neutreno", "text", (0, 1)), ("neutreno", "vision", (0, 1, 2))]
    assert not torch.equal(embeddings(model)[0], text)
    remedies.undo(model, stack="text")
    assert where(model) == [("deescalate", "vision", (2,)), ("neutreno", "vision", (0, 1, 2))]
    assert torch.equal(embeddings(model)[0], text)
    before.check(remedies.undo(model))


def test_each_stack_counts_its_own_layers() -> None:
    model = remedies.apply(clip(), "residual_scaling")
    scales = {
        one.stack: {edit.scale for block in one.blocks.values() for edit in edits_of(block)}  # type: ignore[attr-defined]
        for one in find_stacks(model)
    }
    assert scales == {"text": {2**-0.5}, "vision": {3**-0.5}}
    remedies.undo(model)
    with pytest.raises(UnsmoothError, match="layers from 0 to 1"):  # the third is the vision tower's alone
        remedies.apply(model, "residual_scaling", layers=[2])
    assert where(model) == []


def test_a_stack_that_refuses_is_left_out_and_named() -> None:
    model = nn.ModuleDict({"one": BY_NAME["bert"].model(), "two": BY_NAME["vit"].model()})
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match="deepnorm cannot be applied to vit block"):
        remedies.apply(model, "deepnorm", stack="two")
    before.check(model)
    with pytest.warns(UserWarning, match="not applied to the stack 'two': deepnorm cannot be applied to vit block"):
        remedies.apply(model, "deepnorm")
    assert where(model) == [("deepnorm", "one", (0, 1, 2))]


def test_nothing_is_changed_where_every_stack_refuses() -> None:
    model = nn.ModuleDict({"one": BY_NAME["vit"].model(), "two": BY_NAME["vit"].model()})
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match="deepnorm cannot be applied to vit block"):
        remedies.apply(model, "deepnorm")
    before.check(model)


def test_stacks_that_one_module_runs_keep_apart() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(4)]
            self.first, self.second = nn.ModuleList(layers[:2]), nn.ModuleList(layers[2:])

        def forward(self, x: Tensor) -> Tensor:
            for layer in (*self.first, *self.second):
                x = layer(x)
            return x

    torch.manual_seed(0)
    model, x = Both().eval(), torch.randn(1, 3, 8)
    plain = model(x)
    remedies.apply(model, "neutreno", stack="second")
    second = model(x)
    remedies.apply(model, "neutreno", stack="first", lam=0.0)  # its values must not reach the other stack
    torch.testing.assert_close(model(x), second)
    remedies.undo(model, stack="second")
    torch.testing.assert_close(model(x), plain)
    remedies.undo(model)
    assert not model._forward_pre_hooks
    assert not model._forward_hooks


def test_folded_and_saved(tmp_path: Path) -> None:
    model = remedies.apply(remedies.apply(clip(), "deescalate", stack="text", layers=[1]), "residual_scaling")
    wanted = embeddings(model)
    remedies.save(model, tmp_path / "saved")
    loaded = remedies.restore(clip(seed=1), tmp_path / "saved")
    assert where(loaded) == where(model)
    assert all(map(torch.equal, embeddings(loaded), wanted))
    model = remedies.apply(clip(), "residual_scaling")
    wanted = embeddings(model)
    remedies.fold(model)
    assert where(model) == []
    for folded, unfolded in zip(embeddings(model), wanted, strict=True):
        torch.testing.assert_close(folded, unfolded, atol=1e-6, rtol=1e-5)


def test_a_stack_in_text() -> None:
    wishes = parse_remedies("deescalate(tau=0.5, stack=vision) + residual_scaling")
    assert str(wishes[0]) == "deescalate(stack='vision', tau=0.5)"
    model = apply_wishes(clip(), wishes)
    assert [(name, stack) for name, stack, _ in where(model)] == [
        ("deescalate", "vision"),
        ("residual_scaling", "text"),
        ("residual_scaling", "vision"),
    ]
