"""Where the blocks and sites of a network are, and how to watch what flows through them.

A host describes one family of blocks by class name, so a model is recognised however it is wrapped and
without importing the library it comes from.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.registry import Registry

SITES: Mapping[str, str] = {
    "residual": "what a block hands on (post-norm: after its last norm); layer 0 is the input of the first block",
    "normed": "what attention reads",
    "attention": "output of the attention branch before it is added to the stream",
    "mid": "the stream between attention and MLP; absent where both run in parallel",
    "mlp": "output of the MLP branch before it is added to the stream",
}


@dataclass(frozen=True)
class Tap:
    """A tensor inside a block: what goes into, or comes out of, one of its modules.

    Args:
        module: Path of the module relative to the block.
        end: "input" (its first tensor argument) or "output" (its first tensor result).
    """

    module: str
    end: Literal["input", "output"]


def _no_preparation(model: nn.Module) -> AbstractContextManager[Any]:
    return nullcontext()


@dataclass(frozen=True)
class Host:
    """One family of Transformer blocks.

    Args:
        name: Short name, shown by ``unsmooth ls models``.
        blocks: Class names of the block; a subclass matches too.
        taps: Site name to `Tap` for one block; "residual" is the block itself and needs none.
        example: What a user would call such a model, for the list.
        prefix_tokens: Special tokens that the model itself puts in front (class, distillation, register).
        batch_first: Whether a block's tensors are (batch, tokens, dim) rather than (tokens, batch, dim).
        real_tokens: Reads a (batch, tokens) mask, True = real, off a block's call where the block is given one.
        prepare: Context in which the model must run for the hooks to see ordinary tensors.
    """

    name: str
    blocks: tuple[str, ...]
    taps: Callable[[nn.Module], Mapping[str, Tap]]
    example: str
    prefix_tokens: Callable[[nn.Module], int] = lambda model: 0
    batch_first: Callable[[nn.Module], bool] = lambda block: True
    real_tokens: Callable[[tuple[Any, ...], Mapping[str, Any]], Tensor | None] = lambda args, kwargs: None
    prepare: Callable[[nn.Module], AbstractContextManager[Any]] = _no_preparation


HOSTS = Registry[Host]("host")


class Observer(Protocol):
    """Called for every tensor that passes a watched site, in call order."""

    def __call__(self, layer: int, site: str, tensor: Tensor) -> None:
        """Receive one (batch, tokens, dim) tensor."""


@dataclass
class Watch:
    """The state of one forward pass under observation."""

    layer: int = 0
    real_tokens_BN: Tensor | None = None


@dataclass(frozen=True)
class Anatomy:
    """A model with its blocks found."""

    model: nn.Module
    host: Host
    blocks: Mapping[str, nn.Module]
    sites: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        present = {site for block in self.blocks.values() for site in self.host.taps(block)}
        object.__setattr__(self, "sites", tuple(site for site in SITES if site == "residual" or site in present))

    @contextmanager
    def watch(self, observer: Observer, sites: Sequence[str] = ("residual",)) -> Iterator[Watch]:
        """Call `observer` for every tensor at `sites` while the context is open; hooks never outlive it.

        Layers are numbered by call order from 1 in each forward pass of `model`, so a block that is called
        several times (ALBERT) is as many layers. Layer 0 is the input of the first block called.
        """
        self.check_sites(sites)
        watch = Watch()
        with ExitStack() as stack:
            stack.enter_context(self.host.prepare(self.model))

            def hook(register: Callable[..., Any], function: Callable[..., None], **options: Any) -> None:
                stack.callback(register(function, **options).remove)

            def restart(module: nn.Module, args: Any) -> None:
                watch.layer, watch.real_tokens_BN = 0, None

            hook(self.model.register_forward_pre_hook, restart)
            for block in self.blocks.values():
                self._hook_block(block, hook, watch, observer, sites)
            yield watch

    def _hook_block(
        self,
        block: nn.Module,
        hook: Callable[..., None],
        watch: Watch,
        observer: Observer,
        sites: Sequence[str],
    ) -> None:
        batch_first = self.host.batch_first(block)

        def see(site: str, found: Tensor) -> None:
            observer(watch.layer, site, found if batch_first else found.transpose(0, 1))

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            if watch.layer == 0:
                watch.real_tokens_BN = self.host.real_tokens(args, kwargs)
                if "residual" in sites:
                    see("residual", first_input(args, kwargs))
            watch.layer += 1

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            see("residual", first_output(output))

        hook(block.register_forward_pre_hook, enter, with_kwargs=True)
        for site, tap in self.host.taps(block).items():
            if site in sites:
                _hook_tap(_submodule(block, tap, self.host), tap, site, hook, see)
        if "residual" in sites:
            hook(block.register_forward_hook, leave)

    def check_sites(self, sites: Sequence[str]) -> None:
        """Refuse a site that does not exist, or not in this model."""
        for site in sites:
            if site not in SITES:
                raise unknown_name("site", site, SITES)
            if site not in self.sites:
                raise expected(
                    f"a site that {self.host.name} blocks have ({', '.join(self.sites)})", repr(site), "another site"
                )


def _hook_tap(
    module: nn.Module, tap: Tap, site: str, hook: Callable[..., None], see: Callable[[str, Tensor], None]
) -> None:
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        see(site, first_input(args, kwargs))

    def after(module: nn.Module, args: Any, output: Any) -> None:
        see(site, first_output(output))

    if tap.end == "input":
        hook(module.register_forward_pre_hook, before, with_kwargs=True)
    else:
        hook(module.register_forward_hook, after)


def _submodule(block: nn.Module, tap: Tap, host: Host) -> nn.Module:
    try:
        return block.get_submodule(tap.module)
    except AttributeError:
        raise expected(
            f"a module {tap.module!r} in {host.name} block {type(block).__name__}",
            "none, so its library has another layout than the one known here",
            'sites=("residual",) or blocks="path.to.blocks.*"',
        ) from None


def first_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The hidden states a module was called with: first tensor argument, `hidden_states`, or first tensor keyword."""
    for value in (*args, kwargs.get("hidden_states"), *kwargs.values()):
        if isinstance(value, Tensor):
            return value
    raise expected("a block called with a tensor", f"{len(args)} arguments without one", "another blocks pattern")


def first_output(output: Any) -> Tensor:
    """The hidden states a module returned, alone or first in a tuple or a model output."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if isinstance(output, Mapping) else output
    for value in values if isinstance(values, Sequence) or isinstance(output, Mapping) else ():
        if isinstance(value, Tensor):
            return value
    raise expected("a block that returns a tensor", type(output).__name__, "another blocks pattern")


def find_anatomy(model: nn.Module, blocks: str | None = None) -> Anatomy:
    """Find the Transformer blocks of `model`, by known block classes or by a pattern over module paths.

    Args:
        model: Any module.
        blocks: Pattern over ``model.named_modules()`` paths in which ``*`` stands for one path component,
            such as ``"encoder.layers.*"``. Only the residual site is known then.
    """
    if not isinstance(model, nn.Module):
        raise expected("an nn.Module", type(model).__name__, "unsmooth.load(name) first")
    if blocks is not None:
        return _by_pattern(model, blocks)
    for host in HOSTS.values():
        found = {name: module for name, module in model.named_modules() if _is_block(module, host)}
        if found:
            return Anatomy(model, host, found)
    raise UnsmoothError(
        f"Expected Transformer blocks in {type(model).__name__} but found none of "
        f"{', '.join(sorted({name for host in HOSTS.values() for name in host.blocks}))}. "
        f"Try blocks=\"encoder.layers.*\" with a path of this model, such as {_suggest_pattern(model)}."
    )


def _is_block(module: nn.Module, host: Host) -> bool:
    # FSDP2 and PEFT subclass the block's class, so its bases are looked at too.
    return any(base.__name__ in host.blocks for base in type(module).__mro__)


def _by_pattern(model: nn.Module, pattern: str) -> Anatomy:
    found = {name: module for name, module in model.named_modules() if _matches(name, pattern)}
    if not found:
        raise expected(
            f"modules that match blocks={pattern!r} in {type(model).__name__}",
            "none",
            f"a path of this model, such as {_suggest_pattern(model)}",
        )
    host = Host(name="pattern", blocks=(), taps=lambda block: {}, example=pattern)
    return Anatomy(model, host, found)


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _suggest_pattern(model: nn.Module) -> str:
    """The longest list of same-class modules is nearly always the stack of blocks."""
    lists = [
        (len(module), name)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1
    ]
    return repr(f"{max(lists)[1]}.*".lstrip(".")) if lists else "one printed by print(model)"
