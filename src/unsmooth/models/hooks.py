"""Hooks that one thread has on a model, which other threads call meanwhile as if there were none.

A model may be served by one thread while another looks at it. Torch calls a module's hooks in every thread, and has
torch's own encoder leave its fused kernels where it has any. So the hooks of a thread stand in a table that only calls
made in that thread find them in: other calls are not measured, not changed, and cannot fail in them. Threads that torch
starts for itself are other threads too: of replicas (`nn.DataParallel`), and of blocks that a GPU runs again for a
backward pass. A pass that runs some blocks of a stack in threads of its own is refused, as its curve would lack those.
What is compiled while somebody looks is compiled without the hooks.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, ItemsView, Iterable, Iterator, MutableMapping, ValuesView
from contextlib import ExitStack, contextmanager
from functools import update_wrapper
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from unsmooth.models.walk import modules_of

T = TypeVar("T", bound=Hashable)
V = TypeVar("V")

# Held for as long as it takes to put something of ours into a module, or to take it out.
_LOCK = threading.RLock()
# Where a module keeps the hooks that these register.
_TABLES = {
    "register_forward_pre_hook": "_forward_pre_hooks",
    "register_forward_hook": "_forward_hooks",
    "register_full_backward_hook": "_backward_hooks",
}


class Hooks(ExitStack):
    """Hooks of the thread that registers them, until the context is left.

    A backward hook belongs to the passes of that thread, whichever thread runs the backward pass.

    Args:
        on_error: Told of what a hook raises, which else comes out of the forward pass.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> def call():
        ...     layer(torch.ones(1, 2))
        >>> other = threading.Thread(target=call)
        >>> with Hooks() as hook:
        ...     hook(layer.register_forward_hook, lambda module, args, output: print("seen"))
        ...     call()
        ...     other.start()  # and is not
        ...     other.join()
        seen
    """

    def __init__(self, on_error: Callable[[Exception], None] | None = None) -> None:
        super().__init__()
        self._on_error = on_error

    def __call__(self, register: Callable[..., Any], function: Callable[..., Any], **options: Any) -> None:
        """Have `function` called where `register`, such as ``module.register_forward_hook``, says.

        What it returns, unless it is None, goes on in place of what it was shown, as with any hook of torch.
        """
        module: nn.Module = getattr(register, "__self__")  # noqa: B009 - of a bound method
        name = _TABLES[register.__name__]
        with _LOCK:
            table = vars(module)[name]
            if not isinstance(table, _Table):
                table = vars(module)[name] = _Table(table)
            self.callback(_take_away, module, name, table)
            handle = register(_OfThread(function, self._on_error), **options)
        self.callback(handle.remove)


def _take_away(module: nn.Module, name: str, table: _Table) -> None:
    with _LOCK:
        # A handle that somebody else got meanwhile points to this table, which then stays.
        if not (table.ours or table.lent or table.deaf) and vars(module)[name] is table:
            vars(module)[name] = table.others


# Of each thread that looks at something for itself, meanwhile: what it registers is called then, and nothing else.
_ASIDE: dict[int, object] = {}


@contextmanager
def aside(modules: Iterable[nn.Module] = ()) -> Iterator[None]:
    """The hooks that this thread has already are not called in here, and those that it registers in here not after.

    Nor are those that a user put on `modules`: what this thread runs in here is no pass of theirs.
    """
    here, found = threading.get_ident(), list[tuple[nn.Module, str, _Table]]()
    with _LOCK:
        for module in modules:
            for name in ("_forward_pre_hooks", "_forward_hooks"):
                table = vars(module)[name]
                if not all(map(_is_needed, list(table.values()))):
                    if not isinstance(table, _Table):
                        table = vars(module)[name] = _Table(table)
                    table.deaf.append(here)
                    found.append((module, name, table))
    before = _ASIDE.get(here)
    _ASIDE[here] = object()
    try:
        yield
    finally:
        _ASIDE.pop(here)
        if before is not None:
            _ASIDE[here] = before
        with _LOCK:
            for module, name, table in found:
                table.deaf.remove(here)
                _take_away(module, name, table)


class _OfThread:
    """A hook of the thread that made it."""

    def __init__(self, function: Callable[..., Any], on_error: Callable[[Exception], None] | None) -> None:
        self.thread = threading.get_ident()
        self.function = function
        self.on_error = on_error
        self.aside = _ASIDE.get(self.thread)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _ASIDE and _ASIDE.get(self.thread) is not self.aside:
            return None
        try:
            return self.function(*args, **kwargs)
        except Exception as error:
            if self.on_error is None:
                raise
            self.on_error(error)


_PLAIN: Any = OrderedDict
_NONE: dict[int, Any] = {}


class _Table(MutableMapping[int, Any], OrderedDict[int, Any]):  # type: ignore[metaclass, misc]
    """A module's hooks: those of everybody, and for a thread that has some of ours, those after them.

    As a dict, which is how a compiler reads it past all methods, it holds those of everybody.

    Args:
        others: The module's own table, to which handles point that were given out before; it is what counts.
    """

    def __init__(self, others: OrderedDict[int, Any]) -> None:
        _PLAIN.__init__(self)
        for key, hook in others.items():
            _PLAIN.__setitem__(self, key, hook)
        self.others = others
        self.ours: dict[int, _OfThread] = {}
        self.of: dict[int, dict[int, _OfThread]] = {}
        self.deaf: list[int] = []
        self.lent = self.asked_elsewhere = False

    def _mine(self) -> dict[int, _OfThread]:
        if torch.compiler.is_dynamo_compiling():
            return _NONE
        if (mine := self.of.get(threading.get_ident())) is not None:
            return mine
        self.asked_elsewhere = True
        return _NONE

    def _heard(self) -> dict[int, Any]:
        """Those of others that a call made in this thread finds."""
        if self.deaf and threading.get_ident() in self.deaf:
            return {key: hook for key, hook in self.others.items() if _is_needed(hook)}
        return self.others

    def _found(self) -> dict[int, Any]:
        """As they are now: a hook may take others away while torch goes through them."""
        return {**self._heard(), **self._mine()}

    def __iter__(self) -> Iterator[int]:
        return iter(self._found())

    def __len__(self) -> int:  # asked several times in every call of the module
        return len(self._heard()) + len(self._mine())

    def items(self) -> ItemsView[int, Any]:
        """Number and hook."""
        return self._found().items()

    def values(self) -> ValuesView[Any]:
        """The hooks."""
        return self._found().values()

    def __contains__(self, key: object) -> bool:
        return key in self.ours or key in self.others

    def __getitem__(self, key: int) -> Any:
        return self.ours[key] if key in self.ours else self.others[key]

    def __setitem__(self, key: int, hook: Any) -> None:
        if isinstance(hook, _OfThread):
            self.ours[key] = self.of.setdefault(hook.thread, {})[key] = hook
        else:
            self.others[key], self.lent = hook, True
            _PLAIN.__setitem__(self, key, hook)

    def __delitem__(self, key: int) -> None:
        if key in self.ours:
            del self.of[self.ours.pop(key).thread][key]
        else:
            del self.others[key]
            _PLAIN.__delitem__(self, key)

    def move_to_end(self, key: int, last: bool = True) -> None:
        """As torch asks for, where a hook is to come first."""
        self.others.move_to_end(key, last)
        _PLAIN.move_to_end(self, key, last)

    def __reduce__(self) -> Any:
        # In a copy, or in a file, nobody looks on.
        return OrderedDict, (list(self._heard().items()),)


def _is_needed(hook: Any) -> bool:
    """Whether a model may not run without a hook: those that place, gather or hand on tensors, and remedies."""
    home = getattr(getattr(hook, "func", hook), "__module__", None) or ""
    return home.partition(".")[0] in ("torch", "accelerate", "transformers", "unsmooth")


def called_elsewhere(module: nn.Module) -> bool:
    """Whether a thread without hooks on a module has called it since another one has some there."""
    return any(getattr(vars(module)[name], "asked_elsewhere", False) for name in _TABLES.values())


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """This thread runs compiled parts as they were written: what torch.compile has traced ignores hooks added later."""
    here = threading.get_ident()
    with ExitStack() as stack:
        for module in filter(is_compiled, modules_of(model)):
            wraps: Any = getattr(module, "_orig_mod", None) if _is_wrapper(module) else None
            if wraps is not None:
                stack.enter_context(_run_by(here, module, "forward", wraps))
            else:
                stack.enter_context(_run_by(here, module, "_compiled_call_impl", module._call_impl))
        yield


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile wraps it, or was called on it in place."""
    return _is_wrapper(module) or getattr(module, "_compiled_call_impl", None) is not None


def _is_wrapper(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule"


class _Switch:
    """In place of what runs a compiled module: some threads run it as it was written."""

    def __init__(self, compiled: Callable[..., Any], plain: Callable[..., Any]) -> None:
        self.compiled, self.plain = compiled, plain
        self.threads: list[int] = []
        update_wrapper(self, compiled)  # the signature may be asked for

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling() and threading.get_ident() in self.threads:
            return self.plain(*args, **kwargs)
        return self.compiled(*args, **kwargs)


@contextmanager
def _run_by(thread: int, module: nn.Module, name: str, plain: Callable[..., Any]) -> Iterator[None]:
    with _LOCK:
        switch = vars(module)[name]
        if not isinstance(switch, _Switch):
            switch = vars(module)[name] = _Switch(switch, plain)
        switch.threads.append(thread)
    try:
        yield
    finally:
        with _LOCK:
            switch.threads.remove(thread)
            if not switch.threads and vars(module)[name] is switch:
                vars(module)[name] = switch.compiled


class ForAllThreads(Generic[T, V]):
    """What can only be changed for all threads at once: the first to come changes it, the last to leave restores it.

    Args:
        read: Gives what `restore` will need of a thing.
        restore: Called with the thing and that.

    Example:
        >>> lamp = torch.ones(1)
        >>> dark = ForAllThreads(torch.clone, torch.Tensor.copy_)
        >>> with dark([lamp], torch.any, lambda lamps: lamps[0].zero_()):
        ...     with dark([lamp], torch.any, lambda lamps: print("not called")):
        ...         print(lamp)
        ...     print(lamp)
        tensor([0.])
        tensor([0.])
        >>> lamp
        tensor([1.])
    """

    def __init__(self, read: Callable[[T], V], restore: Callable[[T, V], Any]) -> None:
        self._read, self._restore = read, restore
        self._held: dict[T, tuple[int, V]] = {}

    @contextmanager
    def __call__(
        self, things: Iterable[T], due: Callable[[T], Any], change: Callable[[list[T]], Any]
    ) -> Iterator[None]:
        """Changed in here: those of `things` that are `due`, and those that another thread has changed already."""
        with _LOCK:
            mine = [one for one in things if one in self._held or due(one)]
            new = [one for one in mine if one not in self._held]
            for thing in mine:
                count, before = self._held[thing] if thing in self._held else (0, self._read(thing))
                self._held[thing] = count + 1, before
        try:
            if new:
                with _LOCK:
                    change(new)
            yield
        finally:
            with _LOCK:
                for thing in mine:
                    count, before = self._held.pop(thing)
                    if count > 1:
                        self._held[thing] = count - 1, before
                    else:
                        self._restore(thing, before)


_CHUNK = "chunk_size_feed_forward"
_CHUNKED = ForAllThreads[nn.Module, int](lambda module: getattr(module, _CHUNK), lambda one, n: setattr(one, _CHUNK, n))


class _Seen(TorchFunctionMode):
    """Torch's encoder packs nothing where its functions may be seen: a thread's own choice, unlike its attributes."""

    is_on = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))

    def begin(self, module: nn.Module, args: Any) -> None:
        """Before the encoder."""
        self.is_on = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self, *call: Any) -> None:
        """Before its first layer, when it has decided; or after it, where it failed."""
        if self.is_on:
            self.is_on = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]


@contextmanager
def whole_sequences(model: nn.Module) -> Iterator[None]:
    """For a while, MLPs run on whole sequences, not in chunks, and torch's encoder packs no padded batch."""

    def whole(chunked: list[nn.Module]) -> None:
        for module in chunked:
            setattr(module, _CHUNK, 0)

    with _CHUNKED(model.modules(), lambda module: getattr(module, _CHUNK, 0), whole), Hooks() as hook:
        for module in model.modules():
            if getattr(module, "use_nested_tensor", False) is True:
                seen, layers = _Seen(), module.get_submodule("layers")
                hook(module.register_forward_pre_hook, seen.begin)
                hook(layers.get_submodule("0").register_forward_pre_hook, seen.end)
                hook(module.register_forward_hook, seen.end, always_call=True)
        yield
