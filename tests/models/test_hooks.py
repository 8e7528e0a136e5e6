"""Hooks of one thread: others call the model as if nobody looked, and what is changed for all is put back by the last.

Where two threads have to overlap, events make them: a thread stands inside a pass of the model while another one calls.
"""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import unsmooth
from tests.models.entries import ENTRIES
from unsmooth import Monitor, scan
from unsmooth.errors import UnsmoothError
from unsmooth.models import find_anatomy, watch_attention
from unsmooth.models.hooks import ForAllThreads, Hooks, aside, whole_sequences
from unsmooth.scanning.calling import quiet_evaluation
from unsmooth.scanning.undisturbed import any_kernel

BY_NAME = {entry.name: entry for entry in ENTRIES}


def elsewhere(work: Callable[[], Any]) -> Any:
    """What another thread gets, or its error."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


@contextmanager
def another_inside(work: Callable[[Callable[[], None]], Any]) -> Iterator[list[Any]]:
    """Another thread stands still in the middle of `work`, where that calls what it is given, until the end of this."""
    arrived, go_on, found = threading.Event(), threading.Event(), list[Any]()

    def pause() -> None:
        arrived.set()
        assert go_on.wait(60)

    thread = threading.Thread(target=lambda: found.append(work(pause)))
    thread.start()
    assert arrived.wait(60)
    try:
        yield found
    finally:
        go_on.set()
        thread.join(60)


def torch_encoder(dropout: float = 0.1) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True)
    return nn.TransformerEncoder(layer, 3).eval()


PADDED = {"src_key_padding_mask": torch.arange(6)[None] >= torch.tensor([6, 4])[:, None]}


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@torch.no_grad()
def test_a_thread_that_serves_a_watched_model_does_so_by_the_same_kernels() -> None:
    """Torch's encoder leaves its fused layers where it has any hooks."""
    model, calls = torch_encoder(), [(noise(2, 6, 16), {}), (noise(2, 6, 16), PADDED)]
    alone = [model(x, **more) for x, more in calls]
    seen = list[int]()
    with find_anatomy(model).watch(lambda layer, site, tensor: seen.append(layer), ("residual", "attention")):
        watched = [model(x, **more) for x, more in calls]
        seen_by_me = len(seen)
        for (x, more), wanted in zip(calls, alone, strict=True):
            assert torch.equal(elsewhere(torch.no_grad()(lambda x=x, more=more: model(x, **more))), wanted)
    assert len(seen) == seen_by_me == 2 * (4 + 3)
    assert not torch.equal(watched[1], alone[1]), "or the test shows nothing: padding is zero in a nested tensor only"
    assert torch.equal(model(*calls[1][:1], **PADDED), alone[1])


@torch.no_grad()
def test_other_threads_cannot_fail_in_a_watch_and_are_not_in_its_maps() -> None:
    entry = BY_NAME["bert-tiny"]
    model, batch = entry.model(), entry.batch("right")
    wanted, anatomy = model(**batch)[0], find_anatomy(model)

    def refuse(*seen: object) -> None:
        raise AssertionError("a pass of another thread was seen")

    with anatomy.watch(refuse, anatomy.sites), watch_attention(anatomy, refuse), Hooks() as hook:
        hook(model.register_forward_hook, refuse)
        assert torch.equal(elsewhere(lambda: model(**batch)[0]), wanted)


def pausing(data: Tensor, pause: Callable[[], None]) -> Iterator[Tensor]:
    """Two batches, and a pause between them."""
    yield data
    pause()
    yield data


class Gate(nn.Identity):
    """Where a thread that is not the main one stands still once, in the middle of a pass."""

    pause: Callable[[], None] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.pause is not None and threading.current_thread() is not threading.main_thread():
            pause, self.pause = self.pause, None
            pause()
        return x


@pytest.mark.parametrize("training", [False, True])
def test_scans_that_overlap_give_what_each_gives_alone(training: bool) -> None:
    model, gate, data, other = torch_encoder(), Gate(), noise(2, 5, 16), noise(3, 8, 16)
    model.layers[1].dropout2 = gate
    alone = [scan(model, [one, one], progress=False).rows for one in (data, other)]
    model.train(training)

    def work(pause: Callable[[], None]) -> Any:
        gate.pause = pause
        return scan(model, [data, data], progress=False)

    with ExitStack() as stack:
        found = stack.enter_context(another_inside(work))
        first = scan(model, [other, other], progress=False)
        assert not model.training, "the other scan is not over"
        assert found == []
        last = scan(model, pausing(other, stack.close), progress=False)
    assert first.rows == last.rows == alone[1], "whichever ends first"
    assert found[0].rows == alone[0]
    assert {module.training for module in model.modules()} == {training}
    assert hooks_left(model) == 0


def test_a_scan_of_a_model_that_another_thread_puts_into_training_mode_is_refused() -> None:
    model = torch_encoder()
    with pytest.raises(UnsmoothError, match=r"stays in evaluation mode .* but got one that another thread has put"):
        scan(model, pausing(noise(2, 5, 16), lambda: elsewhere(model.train)), progress=False)


def test_explaining_beside_a_scan_and_a_thread_that_serves() -> None:
    model, data = torch_encoder(), noise(2, 5, 16)
    alone = unsmooth.explain(model, data, progress=False)
    with torch.no_grad():
        wanted = model(noise(3, 4, 16))
    with another_inside(lambda pause: scan(model, pausing(data, pause), progress=False)):
        served = list[Tensor]()

        class Serving(nn.Module):
            """In the middle of each call of a block, Jacobians included, another thread is served."""

            def forward(self, x: Tensor) -> Tensor:
                if len(served) < 5 and threading.current_thread() is threading.main_thread():
                    served.append(elsewhere(torch.no_grad()(lambda: model(noise(3, 4, 16)))))
                return x

        model.layers[1].dropout = Serving()  # which torch's fused layer does not call
        mine = unsmooth.explain(model, data, progress=False)
    assert len(served) == 5
    assert all(torch.equal(one, wanted) for one in served)
    assert repr(mine.layers) == repr(alone.layers)


def test_explanations_in_several_threads_are_those_of_one() -> None:
    """Torch has one level of forward differentiation for all threads."""
    model, data = torch_encoder(), noise(2, 5, 16)

    def explained() -> str:
        return repr(unsmooth.explain(model, data, spectral_sequences=1, progress=False).layers)

    alone, before = explained(), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = [one.result() for one in [pool.submit(explained) for _ in range(8)]]
    finally:
        sys.setswitchinterval(before)
    assert found == [alone] * 8


class Pooled(nn.Module):
    """Runs some of its blocks in a thread of its own."""

    def __init__(self, away: Collection[int]) -> None:
        super().__init__()
        self.layers, self.away = torch_encoder().layers, away

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            run = torch.no_grad()(partial(layer, x))
            x = elsewhere(run) if number in self.away else run()
        return x


@pytest.mark.parametrize("away", [{1}, {0, 1, 2}])
@torch.no_grad()
def test_blocks_that_a_model_runs_in_threads_of_its_own_are_refused(away: Collection[int], tmp_path: Any) -> None:
    model, x, heard = Pooled(away), noise(2, 5, 16), list[str]()
    refused = rf"got {3 - len(away)} of 3, and 'layers.{min(away)}' in another"
    anatomy = find_anatomy(model)
    with anatomy.watch(lambda *_: None, on_error=lambda error: heard.append(str(error))):
        model(x)
    with pytest.raises(UnsmoothError, match=refused):
        raise UnsmoothError(*heard)
    with watch_attention(anatomy, lambda *_: None), pytest.raises(UnsmoothError, match=refused):
        model(x)
    for look in (scan, unsmooth.explain):
        for blocks in (None, "layers.*"):
            with pytest.raises(UnsmoothError, match=refused):
                look(model.eval(), x, blocks=blocks, progress=False)
    with Monitor(model.train(), every=1, sinks=(), probe=x, out=tmp_path) as monitor:
        assert monitor.step() is None
    model.away = ()
    assert scan(model, x, progress=False).layers == (0, 1, 2, 3)
    model.forward = lambda x: model.layers[1](x)  # a pass may leave blocks out
    assert scan(model, x, progress=False).layers == (0, 1)


def test_data_that_reach_no_block_are_told_by_an_explanation_as_by_a_scan() -> None:
    model = nn.ModuleDict({"used": torch_encoder(), "idle": torch_encoder()})
    model.forward = lambda x: model["used"](x)
    for look in (scan, unsmooth.explain):
        with pytest.raises(UnsmoothError, match="Expected a model that calls its blocks but got none that was called"):
            look(model, noise(2, 5, 16), blocks="idle.layers.*", progress=False)


def test_another_thread_generates_with_its_cache_while_a_scan_runs() -> None:
    size = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 50}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, bos_token_id=0, eos_token_id=0)).eval()
    ids = torch.randint(3, 50, (2, 6), generator=torch.Generator().manual_seed(0))

    def serve() -> tuple[Tensor, int]:
        with torch.no_grad():
            made = model.generate(ids, max_new_tokens=4, do_sample=False, attention_mask=torch.ones_like(ids))
            return made, model(ids).past_key_values.get_seq_length()

    wanted, kept = serve()
    with another_inside(lambda pause: scan(model, pausing(ids, pause), progress=False)) as found:
        made, cached = elsewhere(serve)
    assert torch.equal(made, wanted)
    assert cached == kept == 6
    assert found[0].healthy


def test_a_monitor_reads_the_passes_of_its_own_thread(tmp_path: Any) -> None:
    model = torch_encoder(dropout=0.0).train()
    data = noise(4, 5, 16)
    for probe in (None, "first"):
        with Monitor(model, every=1, sinks=(), probe=probe, out=tmp_path, strict=True) as monitor:
            elsewhere(lambda: model(noise(2, 9, 16)))
            model(data)
            elsewhere(lambda: model(noise(2, 9, 16)))
            reading = monitor.step()
        assert reading is not None, probe
        alone = scan(model, data if probe is None else data[:2], metrics=["mean_cosine"], progress=False)
        wanted = [row.mean for row in alone.rows]
        assert [row.mean for row in reading.curve("mean_cosine")] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("in_place", [False, True])
def test_what_torch_compiled_runs_compiled_for_everybody_else(in_place: bool) -> None:
    ran = list[bool]()

    def backend(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            ran.append(threading.current_thread() is threading.main_thread())
            return graph(*args)

        return run

    entry, seen = BY_NAME["bert-tiny"], list[int]()
    model, batch = entry.model(), entry.batch("right")
    layers: Any = model.get_submodule("encoder.layer")
    for number, layer in enumerate(layers):
        if in_place:
            layer.compile(backend=backend)
        else:
            layers[number] = torch.compile(layer, backend=backend)
    model(**batch)
    assert set(ran) == {True}
    ran.clear()
    with find_anatomy(model).watch(lambda layer, site, tensor: seen.append(layer)):
        with find_anatomy(model).watch(lambda *_: None):
            model(**batch)
        model(**batch)
        assert (ran, seen) == ([], [0, 1, 2, 3] * 2)
        elsewhere(lambda: model(**batch))
        assert set(ran) == {False}
    model(**batch)
    assert set(ran) == {False, True}
    assert len(seen) == 8


def test_a_thread_that_compiles_meanwhile_traces_nothing_of_the_hooks() -> None:
    model, x, seen = torch_encoder(), noise(2, 6, 16), list[int]()
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        wanted = model(x)
        with find_anatomy(model).watch(lambda layer, site, tensor: seen.append(layer)):
            found = elsewhere(lambda: torch.no_grad()(compiled)(x))
        assert seen == []
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(compiled(x), wanted)


def test_hooks_that_others_put_on_meanwhile_are_theirs_and_stay() -> None:
    layer, calls = nn.Linear(2, 2), list[str]()
    before = layer.register_forward_hook(lambda *_: calls.append("before"))
    with Hooks() as hook:
        hook(layer.register_forward_hook, lambda *_: calls.append("ours"))
        later = layer.register_forward_hook(lambda *_: calls.append("later"))
        first = layer.register_forward_hook(lambda *_: calls.append("first"), prepend=True)
        layer(torch.ones(1, 2))
        assert calls == ["first", "before", "later", "ours"]
        first.remove()
    calls.clear()
    layer(torch.ones(1, 2))
    assert calls == ["before", "later"]
    later.remove()
    before.remove()
    layer(torch.ones(1, 2))
    assert calls == ["before", "later"]
    assert len(layer._forward_hooks) == 0


def test_a_copy_or_a_file_of_a_watched_model_has_none_of_its_hooks() -> None:
    layer = nn.Linear(2, 2)
    with Hooks() as hook:
        hook(layer.register_forward_pre_hook, lambda *_: pytest.fail("seen in a copy"))
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert type(other._forward_pre_hooks) is OrderedDict
            other(torch.ones(1, 2))
    assert type(layer._forward_pre_hooks) is OrderedDict


def test_hooks_may_be_taken_away_by_one_of_them_and_by_another_thread() -> None:
    layer, calls = nn.Linear(2, 2), list[int]()
    hooks = Hooks()

    def close(*_: object) -> None:
        calls.append(1)
        hooks.close()

    hooks(layer.register_forward_hook, close, always_call=True)
    hooks(layer.register_forward_hook, lambda *_: calls.append(2), always_call=True)
    layer(torch.ones(1, 2))
    layer(torch.ones(1, 2))
    assert calls == [1, 2], "torch goes on with those that it had begun to call"
    hooks(layer.register_forward_hook, lambda *_: calls.append(3))
    elsewhere(hooks.close)
    assert type(layer._forward_hooks) is OrderedDict


def test_backward_hooks_are_of_the_passes_of_their_thread_wherever_the_backward_pass_runs() -> None:
    layer, calls = nn.Linear(2, 2), list[str]()
    x = torch.ones(1, 2, requires_grad=True)
    with Hooks() as hook:
        hook(layer.register_full_backward_hook, lambda *_: calls.append("ours"))
        mine, theirs = layer(x).sum(), elsewhere(lambda: layer(x).sum())
        theirs.backward()
        assert calls == []
        elsewhere(mine.backward)
    assert calls == ["ours"]


def test_what_is_changed_for_all_threads_is_put_back_by_the_last_to_leave() -> None:
    model = BY_NAME["bert-chunked"].model().train()
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:

        def work(pause: Callable[[], None]) -> None:
            with quiet_evaluation(model), any_kernel(), whole_sequences(model):
                pause()

        with ExitStack() as stack:
            stack.enter_context(another_inside(work))
            with quiet_evaluation(model.encoder), any_kernel(), whole_sequences(model):
                pass
            with quiet_evaluation(model), any_kernel(), whole_sequences(model):
                stack.close()
                assert model.encoder.layer[0].chunk_size_feed_forward == 0
                assert not torch.are_deterministic_algorithms_enabled()
                assert not any(module.training for module in model.modules())
        assert all(module.training for module in model.modules())
        assert torch.are_deterministic_algorithms_enabled()
        assert model.encoder.layer[0].chunk_size_feed_forward == 3
    finally:
        torch.use_deterministic_algorithms(before)


def test_a_change_that_fails_is_undone() -> None:
    state = {"a": 1}

    def fail(things: list[str]) -> None:
        state["a"] = 2
        raise KeyError("enough")

    changed = ForAllThreads[str, int](state.__getitem__, state.__setitem__)
    with pytest.raises(KeyError), changed(["a"], bool, fail):
        pytest.fail("not reached")
    assert state == {"a": 1}
    with changed(["a"], bool, lambda things: state.update(a=3)):
        assert state == {"a": 3}
    assert state == {"a": 1}


def hooks_left(model: nn.Module) -> int:
    """All that is in the tables, and every table that is not torch's own."""
    tables = [vars(module)[name] for module in model.modules() for name in ("_forward_hooks", "_forward_pre_hooks")]
    return sum(len(table) + (type(table) is not OrderedDict) for table in tables)


def test_a_users_hooks_do_not_hear_a_pass_of_ours_and_those_of_libraries_do() -> None:
    layer, heard = nn.Linear(2, 2), list[str]()
    layer.register_forward_hook(lambda *_: heard.append("user"))
    of_library = partial(_of_library, heard)
    layer.register_forward_hook(of_library)
    with aside([layer]):
        layer(torch.ones(1, 2))
        elsewhere(lambda: layer(torch.ones(1, 2)))
    assert heard == ["library", "user", "library"]
    layer(torch.ones(1, 2))
    assert heard[3:] == ["user", "library"]
    assert type(vars(layer)["_forward_hooks"]) is OrderedDict


def _of_library(heard: list[str], module: nn.Module, args: object, output: object) -> None:
    heard.append("library")


_of_library.__module__ = "accelerate.hooks"
