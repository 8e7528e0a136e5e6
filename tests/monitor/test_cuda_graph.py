"""A look as one CUDA graph: what a call would give, and a call wherever something about the model has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.monitor.training import DIM, TOKENS, make
from unsmooth import Monitor
from unsmooth.monitor import cuda_graph
from unsmooth.monitor.cuda_graph import Circumstances, Replays

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


class Scaled(nn.Module):
    """Multiplies by a number that Python holds."""

    def __init__(self) -> None:
        super().__init__()
        self.by, self.shift = 1.0, nn.Parameter(torch.zeros(DIM))
        self.settings = {"by": 1.0}

    def forward(self, x: Tensor) -> Tensor:
        return x * self.by * self.settings["by"] + self.shift


class Asking(nn.Module):
    """Asks the device for a number, which a graph cannot."""

    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.detach().sum()) > -1e9 else -x


class Waiting(nn.Module):
    """Waits for the device without a word."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            torch.cuda.synchronize()
        return x


class Drawing(nn.Module):
    """Random numbers in evaluation mode too."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x)


def encoder(part: nn.Module | None = None) -> Any:
    torch.manual_seed(0)
    model = make()
    return model if part is None else nn.Sequential(part, model)


Change = Callable[[Any], object]
CHANGES: dict[str, Change] = {
    "a number": lambda model: setattr(model[0], "by", 2.0),
    "a weight's memory": lambda model: setattr(model[0].shift, "data", torch.ones_like(model[0].shift)),
    "a weight": lambda model: setattr(model[0], "shift", nn.Parameter(torch.ones_like(model[0].shift))),
    "a module": lambda model: model.__setitem__(0, Scaled().to(model[0].shift.device)),
    "a hook": lambda model: model[0].register_forward_hook(lambda module, args, out: -out),
    "a method": lambda model: setattr(model[0], "forward", lambda x: x.flip(1)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_are_seen(change: Change) -> None:
    model = encoder(Scaled())
    before = Circumstances(model)
    assert before.same(Circumstances(model))
    change(model)
    assert not before.same(Circumstances(model))


def test_training_is_no_change() -> None:
    model = encoder(Scaled())
    optimiser = torch.optim.AdamW(model.parameters())
    before = Circumstances(model)
    for _ in range(3):
        model(torch.randn(2, TOKENS, DIM)).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
    assert before.same(Circumstances(model))


def test_torch_being_told_something_else_is_a_change() -> None:
    model = encoder()
    before = Circumstances(model)
    with torch.autocast("cuda", torch.bfloat16):
        assert not before.same(Circumstances(model))


def test_precision_may_be_set_by_torch_s_newer_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise RuntimeError("please stick to one")

    before = Circumstances(encoder())
    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    assert not before.same(Circumstances(encoder()))


class Stood:
    """In for a graph, on a machine without a GPU."""

    bytes = 0

    def __init__(self, *given: object) -> None:
        pass


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Replays, Callable[..., str]]:
    """A model, its replays, and a look that says by what it was."""
    monkeypatch.setattr(cuda_graph, "Captured", Stood)
    monkeypatch.setattr(cuda_graph, "_fits", lambda model: True)
    monkeypatch.setattr(cuda_graph, "waits_told", lambda: nullcontext([]))
    model, batch = encoder(Scaled()), object()
    replays = Replays(model)

    def look(*, repeatable: bool = True) -> str:
        found = replays.ready(batch)
        if found is None and replays.possible:
            found = replays.capture(batch, [], lambda: None, torch.device("cuda"))
        if found is not None:
            return "graph"
        with replays.noticing_waits():
            replays.was_called(repeatable=repeatable)
        return "call"

    return model, replays, look


def test_a_call_comes_first_and_after_every_change(looks: tuple[Any, Replays, Callable[..., str]]) -> None:
    model, replays, look = looks
    assert [look() for _ in range(3)] == ["call", "graph", "graph"]
    model[0].by = 3.0
    assert [look() for _ in range(3)] == ["call", "graph", "graph"]
    replays.give_up()
    assert [look() for _ in range(2)] == ["call", "call"]


def test_what_cannot_be_repeated_is_called(looks: tuple[Any, Replays, Callable[..., str]]) -> None:
    _, _, look = looks
    assert [look(repeatable=False) for _ in range(3)] == ["call"] * 3
    assert [look() for _ in range(2)] == ["call", "graph"]


def test_a_model_that_changes_all_the_time_is_called(looks: tuple[Any, Replays, Callable[..., str]]) -> None:
    model, _, look = looks
    found = []
    for number in range(2 * cuda_graph._MOST_CAPTURES + 2):
        found += [look(), look()]
        model[0].by = float(number)
    assert found.count("graph") == cuda_graph._MOST_CAPTURES
    assert found[-2:] == ["call", "call"]


def train(model: nn.Module, monitor: Monitor, steps: int = 6) -> Iterator[int]:
    """Steps, each of which is looked at."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        model(torch.randn(4, TOKENS, DIM, generator=generator).cuda()).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
        monitor.step()
        yield step


def agrees(monitor: Monitor, model: nn.Module, batch: Tensor | dict[str, Tensor]) -> None:
    """The last reading is what a scan finds."""
    found = unsmooth.scan(model, batch, metrics=["mean_cosine", "token_diversity"], progress=False)
    assert monitor.last is not None
    for name in ("mean_cosine", "token_diversity"):
        ours, theirs = monitor.last.curve(name), found.curve(name)
        assert [row.layer for row in ours] == [row.layer for row in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one.mean == pytest.approx(other.mean, rel=1e-4, abs=1e-6)


def by_graph(monitor: Monitor) -> bool:
    assert monitor._probe is not None
    return monitor._probe._replays._captured is not None


@gpu
@pytest.mark.gpu
class TestOnAGpu:
    def test_it_gives_what_a_scan_gives(self) -> None:
        model, batch = encoder().cuda(), torch.randn(3, TOKENS, DIM).cuda()
        with Monitor(model, every=1, probe=batch, sinks=(), strict=True) as monitor:
            for _ in train(model, monitor, steps=40):
                assert by_graph(monitor)
                agrees(monitor, model, batch)
        assert not by_graph(monitor)  # its memory is free

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    def test_it_follows_changes(self, change: Change) -> None:
        model, batch = encoder(Scaled()).cuda(), torch.randn(3, TOKENS, DIM).cuda()
        with Monitor(model, every=1, probe=batch, sinks=(), strict=True) as monitor:
            for step in train(model, monitor):
                agrees(monitor, model, batch)
                if step == 3:
                    assert by_graph(monitor)
                    change(model)

    def test_changes_that_cannot_be_seen_are_found_in_time(self) -> None:
        model, batch = encoder(Scaled()).cuda(), torch.randn(3, TOKENS, DIM).cuda()
        with Monitor(model, every=1, probe=batch, sinks=(), strict=True) as monitor:
            for step in train(model, monitor, steps=24):
                if step == 3:
                    model[0].settings["by"] = 20.0
            assert not by_graph(monitor)
            agrees(monitor, model, batch)

    @pytest.mark.parametrize("part", [Asking, Waiting, Drawing])
    def test_what_a_graph_cannot_hold_is_called(self, part: type[nn.Module]) -> None:
        model, batch = encoder(part()).cuda(), torch.randn(3, TOKENS, DIM).cuda()
        with Monitor(model, every=1, probe=batch, sinks=(), strict=True) as monitor:
            for _ in train(model, monitor):
                assert not by_graph(monitor)
                assert monitor.last is not None
                assert monitor.last.step == monitor.steps

    @pytest.mark.parametrize("part", [Scaled, Asking, Waiting])
    def test_a_training_ends_with_the_same_bits(self, part: type[nn.Module]) -> None:
        ends = []
        for every in (1, 10**9):
            torch.manual_seed(1)
            model = encoder(part()).cuda()
            batch = torch.randn(3, TOKENS, DIM, generator=torch.Generator().manual_seed(2)).cuda()
            with Monitor(model, every=every, probe=batch, sinks=()) as monitor:
                for _ in train(model, monitor):
                    pass
            ends.append([one.detach().clone() for one in model.parameters()] + [torch.rand(3, device="cuda")])
        for one, other in zip(*ends, strict=True):
            assert torch.equal(one, other)

    def test_weights_are_cast_anew_under_autocast(self) -> None:
        model, batch = encoder().cuda(), torch.randn(3, TOKENS, DIM).cuda()
        with (
            torch.autocast("cuda", torch.bfloat16),
            Monitor(model, every=1, probe=batch, sinks=(), strict=True) as monitor,
        ):
            curves = []
            for _ in train(model, monitor):
                assert monitor.last is not None
                curves.append([row.mean for row in monitor.last.curve("mean_cosine")])
            assert by_graph(monitor)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            found = unsmooth.scan(model, batch, metrics=["mean_cosine"], progress=False)
        assert curves[-1] == pytest.approx([row.mean for row in found.curve("mean_cosine")], abs=2e-3)
        assert curves[-1] != pytest.approx(curves[0], abs=1e-3)

    def test_padding_stays_out(self) -> None:
        model, tokens = make().encoder.cuda(), torch.randn(3, TOKENS, DIM).cuda()
        padding = torch.arange(TOKENS) >= torch.tensor([[TOKENS], [TOKENS - 2], [3]])
        batch = {"src": tokens, "src_key_padding_mask": padding.cuda()}
        with Monitor(model, every=1, probe=batch, sinks=(), strict=True) as monitor:
            for _ in train(model, monitor):
                agrees(monitor, model, batch)
            assert by_graph(monitor)
