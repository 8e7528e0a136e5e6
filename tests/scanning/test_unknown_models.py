"""Models of which no name is known: every stack is found by what it does, and measured as our own hooks see it."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import unsmooth
from unsmooth.errors import UnsmoothError
from unsmooth.models import find_anatomy, find_stacks
from unsmooth.models.host import HOSTS

DIM, BATCH, LENGTH = 12, 3, 7
REAL = torch.ones(BATCH, LENGTH, dtype=torch.long)
REAL[0, 4:] = REAL[2, 6:] = 0


class Mix(nn.Module):
    """Attention over the second axis of (batch, tokens, dim), and an MLP."""

    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.norm, self.attn_qkv, self.mlp = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def mixed(self, x: Tensor) -> Tensor:
        q, k, v = self.attn_qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + scaled_dot_product_attention(q, k, v)
        return x + self.mlp(x).tanh()

    def forward(self, x: Tensor) -> Any:
        return self.mixed(x)


class Stacked(nn.Module):
    """Ids to vectors, through layers one after the other."""

    def __init__(self, kind: Callable[[], nn.Module] = Mix, depth: int = 3, words: int = 40) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, DIM)
        self.layers = nn.ModuleList(kind() for _ in range(depth))

    def forward(self, input_ids: Tensor, attention_mask: Any = None) -> Tensor:
        stream = self.embed(input_ids)
        for layer in self.layers:
            stream = layer(stream)
        return stream


def batch() -> dict[str, Tensor]:
    ids = torch.randint(5, 40, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": REAL}


def mean_cosine(x_BND: Tensor, real_BN: Tensor | None) -> tuple[float, int]:
    """Mean over sequences of the mean over pairs i ≠ j, in double precision; and how many tokens there are."""
    each, real_BN = [], torch.ones(x_BND.shape[:2]) if real_BN is None else real_BN
    for x_ND, real_N in zip(x_BND.detach().double().numpy(), real_BN.bool().numpy(), strict=True):
        units = x_ND[real_N] / np.linalg.norm(x_ND[real_N], axis=1, keepdims=True)
        each.append(((units @ units.T).sum() - len(units)) / (len(units) * (len(units) - 1)))
    return float(np.mean(each)), int(real_BN.sum())


def scan(model: nn.Module, data: Any, **options: Any) -> Any:
    return unsmooth.scan(
        model.eval(), [data], **{"metrics": ["mean_cosine"], "tokens": "all", "progress": False, **options}
    )


def check(rows: Any, wanted: list[Tensor], real: Tensor | None = REAL) -> None:
    assert len(rows) == len(wanted) > 1
    for row, x_BND in zip(rows, wanted, strict=True):
        assert (row.mean, row.tokens) == (
            pytest.approx(mean_cosine(x_BND, real)[0], abs=2e-5),
            mean_cosine(x_BND, real)[1],
        )


def seen(model: nn.Module, blocks: str, data: Any, out: Callable[[Any], Tensor] = lambda found: found) -> list[Tensor]:
    """What enters the first block by its first argument, and what `out` takes from what each one returns."""
    kept: list[Tensor] = []
    stack = list(model.get_submodule(blocks).children())
    handles = [stack[0].register_forward_pre_hook(lambda _, args: kept.append(args[0].clone()))]
    handles += [one.register_forward_hook(lambda _, args, found: kept.append(out(found).clone())) for one in stack]
    with torch.no_grad():
        model(**data) if isinstance(data, Mapping) else model(data)
    for handle in handles:
        handle.remove()
    return kept


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Second(Mix):
    """Tokens are the second thing it hands on; the first is of their shape."""

    def forward(self, x: Tensor) -> Any:
        return x.flip(0).cos(), self.mixed(x)


class Named(Mix):
    """What it hands on has names."""

    def forward(self, x: Tensor) -> Any:
        return {"scores": x.mean(), "hidden": self.mixed(x)}


class Unpacking(Stacked):
    def __init__(self, kind: Callable[[], nn.Module], key: Any) -> None:
        super().__init__(kind)
        self.key = key

    def forward(self, input_ids: Tensor, attention_mask: Any = None) -> Tensor:
        stream = self.embed(input_ids)
        for layer in self.layers:
            stream = layer(stream)[self.key]
        return stream


@pytest.mark.parametrize(("kind", "key"), [(Second, 1), (Named, "hidden")], ids=["second", "named"])
def test_the_stream_is_found_among_what_a_block_returns(kind: Any, key: Any) -> None:
    model = Unpacking(kind, key)
    found = scan(model, batch())
    check(found.curve(), seen(model, "layers", batch(), lambda out: out[key]))
    assert not found.notes


class TokensFirst(Stacked):
    def forward(self, input_ids: Tensor, attention_mask: Any = None) -> Tensor:
        stream = self.embed(input_ids).transpose(0, 1)
        for layer in self.layers:
            stream = layer(stream)
        return stream


def test_tokens_first() -> None:
    model = TokensFirst()
    check(scan(model, batch()).curve(), [one.transpose(0, 1) for one in seen(model, "layers", batch())])


def test_blocks_whose_tokens_are_not_first_are_not_explained_on_data() -> None:
    for model, refused in ((TokensFirst(), False), (Unpacking(Second, 1), True)):
        if refused:
            with pytest.raises(UnsmoothError, match="blocks that take and return the tokens of the batch first"):
                unsmooth.explain(model, [batch()], progress=False)
        else:
            found = unsmooth.explain(model, [batch()], progress=False)
            assert found.manifest["data"]["tokens"] == int(REAL.sum())


class Places(Mix):
    """Of images, (batch, height, width, dim) or (batch, dim, height, width)."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.last = last

    def forward(self, x: Tensor) -> Any:
        if not self.last:
            x = x.movedim(1, -1)
        x = self.mixed(x.flatten(1, 2)).view(x.shape)
        return x if self.last else x.movedim(-1, 1)


class Pictures(nn.Module):
    def __init__(self, last: bool) -> None:
        super().__init__()
        self.stem, self.last = nn.Conv2d(3, DIM, 4, 4), last
        self.stages = nn.Sequential(*(Places(last) for _ in range(3)))

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.stem(pixel_values)
        return self.stages(x.movedim(1, -1) if self.last else x)


@pytest.mark.parametrize("last", [True, False], ids=["dim-last", "dim-second"])
def test_places_of_an_image_are_tokens(last: bool) -> None:
    model, data = Pictures(last), {"pixel_values": torch.randn(2, 3, 16, 20)}
    wanted = [one if last else one.movedim(1, -1) for one in seen(model, "stages", data)]
    check(scan(model, data).curve(), [one.flatten(1, 2) for one in wanted], None)


def test_as_many_places_in_a_row_as_features_are_refused() -> None:
    with pytest.raises(UnsmoothError, match=r"\(2, 12, 10, 12\), which may be either\. Try images of another size"):
        scan(Pictures(last=False), {"pixel_values": torch.randn(2, 3, 40, 48)})


class Narrowing(nn.Module):
    """(batch, dim, height, width) in two stages: places in a row are as many as features, then half of those."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, DIM, 4, 4), nn.Conv2d(DIM, 2 * DIM, 2, 2)
        self.stages = nn.ModuleList(nn.ModuleList([Channelled(dim), Channelled(dim)]) for dim in (DIM, 2 * DIM))

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.stem(pixel_values)
        for number, stage in enumerate(self.stages):
            x = self.down(x) if number else x
            for block in stage:
                x = block(x)
        return x


class Channelled(Mix):
    """(batch, dim, height, width)."""

    def forward(self, x: Tensor) -> Any:
        places = x.movedim(1, -1)
        return self.mixed(places.flatten(1, 2)).view(places.shape).movedim(-1, 1)


def test_where_the_first_stage_does_not_say_which_axis_has_features_another_does() -> None:
    model, data = Narrowing().eval(), {"pixel_values": torch.randn(2, 3, 4 * DIM, 4 * DIM)}
    rows = scan(model, data).curve()
    wanted = [*seen(model, "stages.0", data), *seen(model, "stages.1", data)[1:]]
    assert wanted[0].shape == (2, DIM, DIM, DIM)
    check(rows, [one.flatten(2).mT for one in wanted], None)


@pytest.mark.parametrize("registers", [0, 4])
def test_class_tokens_and_registers_are_no_content(registers: int) -> None:
    config = transformers.DINOv3ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=1, intermediate_size=24, image_size=16, patch_size=4,
        num_register_tokens=registers,
    )  # fmt: skip
    model, data = transformers.DINOv3ViTModel(config).eval(), {"pixel_values": torch.randn(2, 3, 16, 16)}
    wanted = seen(model, "model.layer", data)
    assert wanted[0].shape[1] == 1 + registers + 16
    check(scan(model, data, tokens="content").curve(), [one[:, 1 + registers :] for one in wanted], None)
    check(scan(model, data).curve(), wanted, None)


class Shared(Stacked):
    """One module, called as often as there are layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([self.layers[0]] * 3)


def test_a_block_that_is_called_again_and_again_is_as_many_layers() -> None:
    model = Shared()
    found = scan(model, batch())
    with torch.no_grad():
        wanted = [model.embed(batch()["input_ids"])]
        for _ in range(3):
            wanted.append(model.layers[0](wanted[-1]))
    check(found.curve(), wanted)
    assert not found.notes


class Merging(nn.Module):
    """Two lists of blocks in a list; between them two tokens become one, of another width."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.ModuleDict({"blocks": nn.ModuleList(Mix(dim) for _ in range(2))}) for dim in (DIM, 2 * DIM)
        )

    def forward(self, x: Tensor) -> Tensor:
        for number, stage in enumerate(self.stages):
            x = x.reshape(len(x), -1, 2 * DIM) if number else x
            for block in stage["blocks"]:
                x = block(x)
        return x


def test_stages() -> None:
    model, data = Merging().eval(), torch.randn(2, 8, DIM)
    assert [list(one.blocks) for one in find_stacks(model)] == [
        [f"stages.{stage}.blocks.{block}" for stage in (0, 1) for block in (0, 1)]
    ]
    rows = scan(model, data).curve()
    assert [(row.layer, row.stage, row.tokens) for row in rows] == [
        (0, 0, 16), (1, 0, 16), (2, 0, 16), (3, 1, 8), (4, 1, 8)
    ]  # fmt: skip
    check(rows[:3], seen(model, "stages.0.blocks", data), None)
    check(rows[3:], seen(model, "stages.1.blocks", data)[1:], None)


class Adding(Stacked):
    """Something is added to the stream between two blocks: to a new tensor, or in place."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place

    def forward(self, input_ids: Tensor, attention_mask: Any = None) -> Tensor:
        stream = self.embed(input_ids)
        for number, layer in enumerate(self.layers):
            stream = layer(stream)
            if number == 0:
                stream = stream.add_(1) if self.in_place else stream + 1
        return stream


@pytest.mark.parametrize("in_place", [True, False])
def test_what_is_added_between_blocks_is_told(in_place: bool) -> None:
    model = Adding(in_place)
    found = scan(model, batch())
    check(found.curve(), seen(model, "layers", batch()))
    assert found.notes == (
        "In 1 places between the blocks at 'layers.*' something is done to their tokens: "
        "what is measured is what each block hands on.",
    )


def test_what_is_added_between_blocks_of_a_known_family_is_told() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.layers[1](self.layers[0](x) + 1)
            return self.layers[2](x)

    found = scan(Deep(), torch.randn(2, 5, DIM))
    assert [note[:46] for note in found.notes] == ["In 1 places between the blocks at 'layers.*' s"]


class Wide(Stacked):
    """Every token has several vectors, as hyper-connections have them."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, input_ids: Tensor, attention_mask: Any = None) -> Tensor:
        stream = torch.stack([self.embed(input_ids)] * 4, dim=self.axis)
        for layer in self.layers:
            stream = layer(stream)
        return stream


@pytest.mark.parametrize("axis", [0, 2])
def test_several_vectors_of_a_token_are_not_taken_for_tokens(axis: int) -> None:
    with pytest.raises(UnsmoothError, match=r"one vector for each token at 'layers.\*' but got several"):
        scan(Wide(axis), batch())


class Towers(nn.Module):
    """Two of images and texts, and one of both, whose tokens nobody can tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image, self.both = Stacked(), Pictures(last=True), nn.ModuleList(Mix() for _ in range(2))

    def forward(self, input_ids: Tensor, pixel_values: Tensor, attention_mask: Any = None) -> Tensor:
        x = torch.cat([self.text(input_ids), self.image(pixel_values).flatten(1, 2)], dim=1)
        for block in self.both:
            x = block(x)
        return x


def test_towers_have_masks_of_their_own_and_what_is_ambiguous_is_left_out() -> None:
    model, data = Towers(), {**batch(), "pixel_values": torch.randn(BATCH, 3, 16, 16)}
    found = scan(model, data)
    assert [part.stack for part in found.parts] == ["text", "image"]
    check(found.curve(stack="text"), seen(model, "text.layers", data))
    images = seen(model, "image.stages", data)
    check(found.curve(stack="image"), [one.flatten(1, 2) for one in images], None)
    assert any(
        "A stack was not measured" in note and "'both.*'" in note and "token_mask" in note for note in found.notes
    )
    with pytest.raises(UnsmoothError, match=r"one input that becomes the 23 tokens of 'both.\*'"):
        scan(model, data, blocks="both.*")


class Before(Stacked):
    """Two tokens of an image stand in front of the words."""

    def forward(self, input_ids: Tensor, pixel_values: Tensor, attention_mask: Any = None) -> Tensor:
        stream = torch.cat([pixel_values.mean(dim=(1, 3))[:, :2, None].expand(-1, -1, DIM), self.embed(input_ids)], 1)
        for layer in self.layers:
            stream = layer(stream)
        return stream


def test_tokens_of_images_in_front_of_masked_words() -> None:
    model, data = Before(), {**batch(), "pixel_values": torch.randn(BATCH, 3, 16, 16)}
    real = torch.cat([torch.ones(BATCH, 2), REAL], dim=1)
    check(scan(model, data).curve(), seen(model, "layers", data), real)


class Filled(Stacked):
    """Sparse attention that wants a multiple of four."""

    def forward(self, input_ids: Tensor, attention_mask: Any = None) -> Tensor:
        stream = nn.functional.pad(self.embed(input_ids), (0, 0, 0, -input_ids.shape[1] % 4), value=0.5)
        for layer in self.layers:
            stream = layer(stream)
        return stream


def test_tokens_that_a_model_fills_up_with_are_not_counted() -> None:
    model = Filled()
    found = scan(model, batch())
    check(found.curve(), [one[:, :LENGTH] for one in seen(model, "layers", batch())])
    assert found.notes == ("The model puts tokens of its own behind those of the batch, which were not measured.",)


class Row(Stacked):
    """All sequences in one row."""

    def forward(self, input_ids: Tensor, attention_mask: Any = None) -> Tensor:
        stream = self.embed(input_ids).reshape(1, -1, DIM)
        for layer in self.layers:
            stream = layer(stream)
        return stream


def test_sequences_in_one_row() -> None:
    model, data = Row(), {"input_ids": batch()["input_ids"]}
    wanted = [one.reshape(BATCH, LENGTH, DIM) for one in seen(model, "layers", data)]
    check(scan(model, data).curve(), wanted, None)


class Packed(nn.Module):
    """Sequences of any length in one row, (tokens, dim); blocks are told where each begins."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Segmented() for _ in range(3))

    def forward(self, patches: Tensor, lengths: Tensor) -> Tensor:
        bounds = nn.functional.pad(lengths.cumsum(0), (1, 0))
        for block in self.blocks:
            patches = block(patches, cu_seqlens=bounds)
        return patches


class Segmented(Mix):
    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Any:  # type: ignore[override]
        parts = [x[start:end] for start, end in pairwise(cu_seqlens.tolist())]
        return torch.cat([self.mixed(part[None])[0] for part in parts])


def test_sequences_of_any_length_in_one_row() -> None:
    model, lengths = Packed(), [(4, 6, 3), (5, 2)]
    data = [{"patches": torch.randn(sum(one), DIM), "lengths": torch.tensor(one)} for one in lengths]
    for one, own in zip(data, lengths, strict=True):
        found = scan(model, one)
        rows = [nn.utils.rnn.pad_sequence(x.split(own), batch_first=True) for x in seen(model, "blocks", one)]
        real = torch.tensor([[n < length for n in range(max(own))] for length in own])
        check(found.curve(), rows, real)
        assert not found.notes
    assert unsmooth.scan(model, data, tokens="all", progress=False).rows[0].tokens == 20


class Pairs(nn.Module):
    """Attention and MLP side by side in a list that nobody calls, as many write it."""

    def __init__(self, post: bool) -> None:
        super().__init__()
        self.post = post
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [Attention(), nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, DIM)), nn.LayerNorm(DIM)][: 2 + post]
            )
            for _ in range(3)
        )
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.streams(x)[-1])

    def streams(self, x: Tensor) -> list[Tensor]:
        found = [x]
        for attention, mlp, *norm in self.layers:
            x = attention(x) + x
            x = mlp(x) + x
            x = norm[0](x) if norm else x
            found.append(x)
        return found


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_qkv = nn.Linear(DIM, 3 * DIM)

    def forward(self, x: Tensor) -> Tensor:
        return scaled_dot_product_attention(*self.to_qkv(x).chunk(3, dim=-1))


@pytest.mark.parametrize("post", [False, True])
def test_blocks_that_nobody_calls_are_measured_by_their_parts(post: bool) -> None:
    model, data = Pairs(post), torch.randn(2, 5, DIM)
    found = scan(model, data)
    with torch.no_grad():
        check(found.curve(), model.streams(data), None)
    assert not found.notes


class Exiting(Stacked):
    """Stops early, or skips layers, as the numbers it is given say."""

    def __init__(self, skips: bool) -> None:
        super().__init__()
        self.skips = skips

    def forward(self, input_ids: Tensor, attention_mask: Any = None) -> Tensor:
        stream, few = self.embed(input_ids), int(input_ids.max()) < 20
        for number, layer in enumerate(self.layers):
            if few and number == (1 if self.skips else 2):
                if self.skips:
                    continue
                break
            stream = layer(stream)
        return stream


@pytest.mark.parametrize("skips", [True, False])
def test_depth_that_depends_on_the_data_is_refused_and_a_layer_that_never_runs_is_told(skips: bool) -> None:
    model, data = Exiting(skips), batch()
    short = {**data, "input_ids": data["input_ids"] % 10 + 5}
    found = scan(model, short)
    assert found.layers == (0, 1, 2)
    assert found.notes == (f"1 of the 3 blocks at 'layers.*' did not run: 'layers.{1 if skips else 2}'.",)
    with pytest.raises(UnsmoothError, match="a model whose depth does not change from batch to batch"):
        unsmooth.scan(model, [data, short], progress=False)


def test_blocks_that_return_nothing_are_refused() -> None:
    class Silent(Mix):
        def forward(self, x: Tensor) -> Any:
            x.copy_(self.mixed(x))

    class Writing(Stacked):
        def forward(self, input_ids: Tensor, attention_mask: Any = None) -> Tensor:
            stream = self.embed(input_ids)
            for layer in self.layers:
                layer(stream)
            return stream

    with pytest.raises(UnsmoothError, match=r"'layers.\*', of which 'layers.0' returns no tensor of its own"):
        scan(Writing(Silent), batch())


def test_heads_in_a_list_are_no_stack() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(DIM, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList(Head() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.cat([head(x) for head in self.heads], dim=-1)

    model = Stacked(Block)
    assert list(find_anatomy(model).blocks) == ["layers.0", "layers.1", "layers.2"]
    check(scan(model, batch()).curve(), seen(model, "layers", batch()))


class Plain(Mix):
    def __init__(self) -> None:
        super().__init__()
        del self.attn_qkv

    def forward(self, x: Tensor) -> Any:
        return x + self.mlp(self.norm(x)).tanh()


def test_a_model_without_attention_is_told_so_and_can_be_had_all_the_same() -> None:
    model = Stacked(Plain)
    with pytest.raises(UnsmoothError) as error:
        scan(model, batch())
    assert str(error.value) == (
        "Expected Transformer blocks in Stacked but got none: it has no attention. "
        "Try blocks='auto:any' for its longest list, attention or not, or blocks='layers.*'."
    )
    check(scan(model, batch(), blocks="auto:any").curve(), seen(model, "layers", batch()))
    config = transformers.MambaConfig(hidden_size=8, num_hidden_layers=2, vocab_size=40, state_size=4)
    mamba = transformers.MambaModel(config)
    with pytest.raises(UnsmoothError, match=r"it has no attention. Try blocks='auto:any'"):
        find_stacks(mamba)
    assert scan(mamba, batch(), blocks="auto:any").layers == (0, 1, 2)


class Drawing(Stacked):
    """Draws numbers, and counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input_ids: Tensor, attention_mask: Any = None) -> Tensor:
        self.calls += 1
        noise = torch.randn(len(input_ids), input_ids.shape[1], DIM)
        stream = self.embed(input_ids) + noise
        for layer in self.layers:
            stream = layer(stream)
        return stream


def test_a_look_draws_no_number_counts_no_call_and_reads_no_batch_twice() -> None:
    model, reads = Drawing().eval(), Counter[int]()

    def loader() -> Any:
        for number in range(2):
            reads[number] += 1
            yield batch()

    torch.manual_seed(7)
    wanted = seen(model, "layers", batch())
    model.calls.zero_()
    torch.manual_seed(7)
    check(scan(model, batch()).curve(), wanted)
    assert model.calls == 1
    unsmooth.scan(model, loader(), progress=False)
    assert model.calls == 3
    assert reads == {0: 1, 1: 1}
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


def test_a_look_is_kept_until_the_model_changes_and_holds_on_to_nothing() -> None:
    model, calls = Stacked(), Counter[str]()
    count = lambda name: lambda *_: calls.update([name])  # noqa: E731
    model.layers[-1].register_forward_hook(count("last"))
    scan(model, batch())
    first, again = calls["last"], scan(model, batch())
    assert calls["last"] - first == 1 < first
    assert again.rows == scan(model, batch()).rows
    model.layers.append(Mix())
    model.layers[-1].register_forward_hook(count("new"))
    assert scan(model, batch()).layers == (0, 1, 2, 3, 4)
    assert calls["new"] == 2
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_hooks_of_others_that_fail_come_out_as_they_are() -> None:
    model = Stacked()

    def fail(*_: Any) -> None:
        raise KeyError("mine")

    model.layers[1].register_forward_hook(fail)
    with pytest.raises(KeyError, match="mine"):
        scan(model, batch())
    assert [len(one._forward_hooks) for one in model.layers] == [0, 1, 0]


def test_what_is_missing_in_a_batch_is_named() -> None:
    class Pair(Stacked):
        def forward(self, input_ids: Tensor, decoder_input_ids: Any = None, attention_mask: Any = None) -> Tensor:
            return super().forward(decoder_input_ids[:, :1] + input_ids)

    with pytest.raises(
        UnsmoothError, match=r"all that Pair reads .* \(TypeError: 'NoneType'.* Try decoder_input_ids bes"
    ):
        scan(Pair(), batch())


def test_compiled_and_meta() -> None:
    plain = Stacked()
    wanted = seen(plain, "layers", batch())
    check(scan(torch.compile(plain, backend="eager"), batch()).curve(), wanted)
    with torch.device("meta"):
        empty = Stacked()
    with pytest.raises(UnsmoothError, match="a model with weights but got one on the meta device"):
        scan(empty, batch())


@dataclass(frozen=True)
class Known:
    """An architecture of transformers, small and random, none of whose blocks are of a known family."""

    name: str
    model: Callable[[], nn.Module]
    stacks: Mapping[str, str]

    def __str__(self) -> str:
        return self.name


SIZES: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
                         "intermediate_size": 24, "pad_token_id": 1}  # fmt: skip
BART: dict[str, Any] = {"vocab_size": 40, "d_model": 16, "encoder_layers": 3, "decoder_layers": 2, "pad_token_id": 1,
                        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24,
                        "decoder_ffn_dim": 24, "max_position_embeddings": 32}  # fmt: skip
MORE = [
    Known("granite", lambda: transformers.GraniteModel(transformers.GraniteConfig(**SIZES)), {"": "layers"}),
    Known("olmo2", lambda: transformers.Olmo2Model(transformers.Olmo2Config(**SIZES)), {"": "layers"}),
    Known("electra", lambda: transformers.ElectraModel(transformers.ElectraConfig(**SIZES, embedding_size=16)),
          {"": "encoder.layer"}),
    Known("opt", lambda: transformers.OPTModel(transformers.OPTConfig(
        **{**SIZES, "ffn_dim": 24, "word_embed_proj_dim": 16})), {"": "decoder.layers"}),
    Known("bart", lambda: transformers.BartModel(transformers.BartConfig(**BART)),
          {"encoder": "encoder.layers", "decoder": "decoder.layers"}),
    Known("blip", lambda: transformers.BlipModel(transformers.BlipConfig(
        text_config={**SIZES, "encoder_hidden_size": 16}, vision_config={**SIZES, "image_size": 16, "patch_size": 8})),
        {"text": "text_model.encoder.layer", "vision": "vision_model.encoder.layers"}),
]  # fmt: skip


@pytest.mark.parametrize("known", MORE, ids=str)
def test_architectures_without_a_name_on_a_list(known: Known) -> None:
    model = known.model().eval()
    stacks = {one.stack: one for one in find_stacks(model)}
    assert stacks.keys() == known.stacks.keys()
    assert not {one.host.name for one in stacks.values()} & HOSTS.keys()
    data, masks = batch(), {"": REAL, "encoder": REAL, "text": REAL, "vision": None}
    if "decoder" in stacks:
        masks["decoder"] = target = torch.ones(BATCH, 5, dtype=torch.long)
        target[1, 3:] = 0
        data |= {"decoder_input_ids": batch()["input_ids"][:, :5], "decoder_attention_mask": target}
    if "vision" in stacks:
        data["pixel_values"] = torch.randn(BATCH, 3, 16, 16)
    found = scan(model, data)
    assert not found.notes
    for name, blocks in known.stacks.items():
        wanted = seen(model, blocks, data, lambda out: out if isinstance(out, Tensor) else out[0])
        check(found.curve(stack=name), wanted, masks[name])
