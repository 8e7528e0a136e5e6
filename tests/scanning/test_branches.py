"""Streams side by side, branches, lists by turns, inputs beside the words: each is measured as it is, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.scanning.test_unknown_models import BATCH, DIM, LENGTH, REAL, Mix, Stacked, batch, check, scan, seen
from unsmooth.errors import UnsmoothError

NARROW = 8


class Two(nn.Module):
    """Two branches of their own widths and lengths, handed on in one list."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(*(Mix(dim) for _ in range(2))) for dim in (DIM, NARROW))

    def forward(self, streams: list[Tensor]) -> list[Tensor]:
        return [branch(stream) for branch, stream in zip(self.branches, streams, strict=True)]


class Branched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Two() for _ in range(3))

    def forward(self, wide: Tensor, narrow: Tensor) -> Tensor:
        streams = [wide, narrow]
        for block in self.blocks:
            streams = block(streams)
        return streams[0]


def test_branches_of_a_block_are_two_stacks() -> None:
    model, data = Branched().eval(), {"wide": torch.randn(2, 9, DIM), "narrow": torch.randn(2, 5, NARROW)}
    found = scan(model, data)
    for number, entered in enumerate(data.values()):
        wanted = [entered]
        for block in model.blocks:
            wanted.append(block.branches[number](wanted[-1]))
        check(found.curve(stack=f"streams.{number}"), wanted, None)
    assert {part.stack for part in found.parts} == {"streams.0", "streams.1"}


class Parallel(Stacked):
    """Lists of blocks that all start at the embeddings, or one after the other."""

    def __init__(self, chained: bool) -> None:
        super().__init__()
        del self.layers
        self.branches = nn.ModuleList(nn.ModuleList(Mix() for _ in range(2)) for _ in range(2))
        self.chained = chained

    def forward(self, input_ids: Tensor, attention_mask: Any = None) -> Tensor:
        entered = stream = self.embed(input_ids)
        found = []
        for branch in self.branches:
            for layer in branch:
                stream = layer(stream)
            found.append(stream)
            stream = stream if self.chained else entered
        return sum(found, torch.zeros(()))


def test_lists_that_do_not_depend_on_one_another_are_no_curve() -> None:
    with pytest.raises(UnsmoothError, match="blocks that hand their tokens to one another"):
        scan(Parallel(chained=False), batch())
    assert len(scan(Parallel(chained=True), batch()).curve()) == 5


class WithPlaces(Mix):
    """A second, narrower stream beside the words, of where they stand."""

    def __init__(self) -> None:
        super().__init__()
        self.places = Mix(NARROW)

    def forward(self, hidden: Tensor, places: Tensor) -> Any:  # type: ignore[override]
        return self.mixed(hidden), self.places(places)


class OfPages(Stacked):
    def __init__(self) -> None:
        super().__init__(WithPlaces)
        self.of_boxes = nn.Linear(4, NARROW)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, bbox: Tensor) -> Tensor:  # type: ignore[override]
        hidden, places = self.embed(input_ids), self.of_boxes(bbox.float())
        for layer in self.layers:
            hidden, places = layer(hidden, places)
        return hidden


def test_a_narrower_stream_made_of_what_stands_beside_the_ids_has_their_mask() -> None:
    model, data = OfPages().eval(), {**batch(), "bbox": torch.randint(0, 9, (BATCH, LENGTH, 4))}
    found, wanted = scan(model, data), [model.of_boxes(data["bbox"].float())]
    for layer in model.layers:
        wanted.append(layer.places(wanted[-1]))
    check(found.curve(stack="places"), wanted)
    check(found.curve(stack="hidden"), seen(model, "layers", data, lambda out: out[0]))
    assert not found.notes
    fresh = OfPages().eval()  # of which no pass has shown yet that it has no such site
    sites = {(row.stack, row.site) for row in scan(fresh, data, sites=("residual", "attention")).rows}
    assert ("places", "residual") in sites
    assert all(site == "residual" for stack, site in sites if stack == "places")


class ByTurns(Stacked):
    """Each block of a second list stands before one of the first, or before every other one."""

    def __init__(self, every: int, depth: int = 4) -> None:
        super().__init__(depth=depth)
        self.gates = nn.ModuleList(Mix() for _ in range(depth // every))
        self.every = every

    def forward(self, input_ids: Tensor, attention_mask: Any = None) -> Tensor:
        stream = self.embed(input_ids)
        for number, layer in enumerate(self.layers):
            stream = layer(stream if number % self.every else self.gates[number // self.every](stream))
        return stream


@pytest.mark.parametrize("every", [1, 2])
def test_a_list_that_stands_between_the_blocks_of_another_is_told(every: int) -> None:
    model = ByTurns(every)
    found = scan(model, batch())
    check(found.curve(), seen(model, "layers", batch()))
    assert any("'gates.*' stand between those at 'layers.*'" in note for note in found.notes)


class Part(Stacked):
    main_input_name = "input_ids"

    def forward(  # type: ignore[override]
        self, input_ids: Any = None, attention_mask: Any = None, inputs_embeds: Any = None
    ) -> Tensor:
        stream = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        for layer in self.layers:
            stream = layer(stream)
        return stream


class Eyes(nn.Module):
    main_input_name = "pixel_values"

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Linear(3, DIM), nn.ModuleList(Mix() for _ in range(2))

    def forward(self, pixel_values: Tensor) -> Tensor:
        stream = self.embed(pixel_values.flatten(2).transpose(1, 2))
        for layer in self.layers:
            stream = layer(stream)
        return stream


class Hearing(nn.Module):
    """Words and images each have a stack, sounds take the places of words."""

    main_input_name, config = "input_ids", None

    def __init__(self) -> None:
        super().__init__()
        self.eyes, self.language, self.ears = Eyes(), Part(), nn.Linear(10, DIM)

    def forward(
        self, input_ids: Tensor, attention_mask: Any = None, pixel_values: Any = None, input_values: Any = None
    ) -> Tensor:
        stream = self.language.embed(input_ids)
        if input_values is not None:
            heard = self.ears(input_values.unflatten(1, (-1, 10)))
            stream = torch.cat([heard, stream[:, heard.shape[1] :]], dim=1)
        if pixel_values is not None:
            stream = stream + self.eyes(pixel_values).mean(dim=1, keepdim=True)
        return self.language(inputs_embeds=stream, attention_mask=attention_mask)


def test_sounds_among_the_words_reach_a_stack_that_could_run_without_them() -> None:
    model, data = Hearing().eval(), {**batch(), "input_values": torch.randn(BATCH, 30)}
    found, wanted = scan(model, data), seen(model, "language.layers", data)
    check(found.curve(), wanted, REAL)
    without = {name: one for name, one in data.items() if name != "input_values"}
    check(scan(model, without).curve(), seen(model, "language.layers", without), REAL)


class Patches(nn.Module):
    """Patches of several images in one row, (1, tokens, dim); blocks are told where each begins, or are not."""

    def __init__(self, told: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(10, DIM)
        self.layers = nn.ModuleList((Told if told else Mix)() for _ in range(3))
        self.told = told

    def forward(self, pixel_values: Tensor, grid_thw: Tensor) -> Tensor:
        stream = self.embed(pixel_values)[None]
        bounds = nn.functional.pad(grid_thw.prod(dim=1).cumsum(0), (1, 0))
        for layer in self.layers:
            stream = layer(stream, bounds) if self.told else layer(stream)
        return stream


class Told(Mix):
    def forward(self, x: Tensor, bounds: Tensor) -> Any:  # type: ignore[override]
        return torch.cat([self.mixed(one) for one in x.split(bounds.diff().tolist(), dim=1)], dim=1)


@pytest.mark.parametrize("told", [True, False])
def test_patches_of_images_in_one_row_are_those_of_each(told: bool) -> None:
    model, data = Patches(told), {"pixel_values": torch.randn(12, 10), "grid_thw": torch.tensor([[1, 2, 3]] * 2)}
    check(scan(model, data).curve(), [one.view(2, 6, DIM) for one in seen(model, "layers", data)], None)


def test_images_of_several_sizes_in_one_row_are_told_apart_where_blocks_are_told() -> None:
    data = {"pixel_values": torch.randn(10, 10), "grid_thw": torch.tensor([[1, 2, 3], [1, 2, 2]])}
    model = Patches(told=True)
    wanted = [nn.utils.rnn.pad_sequence(one[0].split([6, 4]), batch_first=True) for one in seen(model, "layers", data)]
    real = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    check(scan(model, data).curve(), wanted, real)
    with pytest.raises(UnsmoothError):
        scan(Patches(told=False), data)


class Manifold(Stacked):
    """Each token is two vectors at once; a second list of blocks is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.ModuleList(Mix() for _ in range(2))

    def forward(self, input_ids: Tensor, attention_mask: Any = None) -> Tensor:
        stream = self.embed(input_ids)[None].repeat(2, 1, 1, 1)
        for layer in self.layers:
            stream = layer(stream)
        return stream


def test_why_nothing_is_measured_is_told_where_another_stack_does_not_run() -> None:
    with pytest.raises(UnsmoothError, match="one vector for each token at 'layers"):
        scan(Manifold(), batch())
