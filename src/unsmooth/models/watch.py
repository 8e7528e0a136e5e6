"""Hooks that show an observer what flows through a model's blocks, and never outlive their context."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models.hooks import Hooks, called_elsewhere, uncompiled, whole_sequences
from unsmooth.models.host import Host, Tap, multiplier
from unsmooth.models.look import Stream, argument, at, lengths_in, same, tensors_in, version
from unsmooth.models.remedied import edits_of, extra_tokens

if TYPE_CHECKING:
    from unsmooth.models.anatomy import Anatomy


class Observer(Protocol):
    """Called for every tensor that passes a watched site, in call order."""

    def __call__(self, layer: int, site: str, tensor: Tensor) -> None:
        """Receive one (batch, tokens, dim) tensor."""


@dataclass
class Watch:
    """The state of one forward pass under observation.

    Args:
        layer: Blocks entered so far.
        real_tokens_BN: True for real tokens, where the first block was handed a padding mask.
        stage: The stage of the block entered last, where there are stages.
        called: Paths of the blocks entered so far.
        lengths: Tokens of each sequence, where all are in one row.
        altered: How often, in the first pass, a block was handed something else than the one before it handed on.
    """

    layer: int = 0
    real_tokens_BN: Tensor | None = None
    stage: int | None = None
    called: set[str] = field(default_factory=set)
    altered: int = 0
    lengths: tuple[int, ...] = ()
    _is_first: bool = True
    _left: tuple[Tensor, int] | None = None

    def handed_on(self, tensor: Tensor) -> None:
        """Remember what a block handed on."""
        self._left = (tensor, version(tensor)) if self._is_first else None

    def handed_in(self, tensor: Tensor) -> None:
        """Compare with that what the next one is handed; between two stages it is of another shape."""
        if self._left is not None and self._left[0].shape == tensor.shape:
            left, before = self._left
            # Another tensor may hold the same numbers; a GPU, which would have to be waited for, is not asked.
            alike = tensor.device.type != "cpu" or left.equal(tensor)
            self.altered += before != version(left) if same(left, tensor) else not alike
        self._left = None

    def passed(self) -> None:
        """Once is enough."""
        self._is_first, self._left = False, None


class SiteError(UnsmoothError):
    """One site inside the blocks has no token vectors to show; the others may have some.

    Args:
        message: In one line.
        site: Which.
    """

    def __init__(self, message: str, site: str = "") -> None:
        super().__init__(message)
        self.site = site


CallObserver = Callable[[str, tuple[Any, ...], Mapping[str, Any]], None]


@contextmanager
def watch_blocks(
    anatomy: Anatomy,
    observer: Observer,
    sites: Sequence[str],
    on_error: Callable[[Exception], None] | None = None,
    on_call: CallObserver | None = None,
) -> Iterator[Watch]:
    """Call `observer` for every tensor at `sites` of the anatomy's blocks while the context is open.

    Passes that other threads run are not seen. Errors of the observer and of the hooks come out of the model's forward
    pass, or go to `on_error`. `on_call` is shown the path and the arguments of every call of a block, before anything
    in it.
    """
    watch = Watch()
    with whole_sequences(anatomy.model), uncompiled(anatomy.model), Hooks(on_error) as hook:

        def restart(module: nn.Module, args: Any) -> None:
            watch.layer, watch.real_tokens_BN = 0, None
            watch.called.clear()

        # Before the blocks' own hooks, so that a model that is itself one block starts over first.
        for entry in anatomy.entries:
            hook(entry.register_forward_pre_hook, restart)
        for path in anatomy.blocks:
            _hook_block(path, anatomy, hook, watch, observer, sites, on_call)
        for entry in anatomy.entries:
            hook(entry.register_forward_hook, lambda *_: check_called(anatomy, watch.called))
            hook(entry.register_forward_hook, lambda *_: watch.passed())
        yield watch


def real_patches(args: tuple[Any, ...], kwargs: Mapping[str, Any], flow: Stream) -> Tensor | None:
    """True for the (batch, tokens) that are not padding of images, by the one mask that a block is handed, if any.

    Images are filled up at the right and below, so that the first token is real: that tells a mask of what is real from
    one of what is padding.

    >>> padded = torch.tensor([[False, False, True]])
    >>> real_patches((torch.zeros(1, 3, 8),), {"mask": padded, "key": torch.zeros(1, 3, 8)}, Stream())
    tensor([[ True,  True, False]])
    """
    given = argument(args, kwargs, flow.enters) if flow.enters else None
    shape = flow.laid_out(given if isinstance(given, Tensor) else first_input(args, kwargs)).shape[:2]
    found: Tensor | None = None
    for _, mask in (*tensors_in(args), *tensors_in(kwargs)):
        if mask.ndim == 4 and mask.shape[1] == 1:
            mask = mask[:, 0, 0]  # as the first token sees others
        added = mask.is_floating_point() and bool(((mask == 0) | (mask < -1e3)).all())  # to scores
        if mask.shape != shape or not (added or bool(((mask == 0) | (mask == 1)).all())):
            continue
        hidden = mask < 0 if added else mask == 0
        real = ~hidden if not hidden[:, 0].any() else hidden
        if not real[:, 0].all() or (found is not None and not found.equal(real)):
            return None
        found = real
    return found


def check_called(anatomy: Anatomy, called: Collection[str]) -> None:
    """Refuse a pass that ran blocks in other threads, where no hook sees them; some it may leave out, or a stack."""
    away = [path for path, block in anatomy.blocks.items() if path not in called and called_elsewhere(block)]
    if away and (called or not anatomy.stack):
        got = f"{len(called)} of {len(anatomy.blocks)}, and {away[0]!r} in another"
        raise expected("blocks that run in the thread that calls the model", got, "a copy that one thread alone calls")


def none_called() -> UnsmoothError:
    """What to say of a pass that reached no block."""
    got = "none that was called"
    return expected("a model that calls its blocks", got, "another blocks pattern, or data that reaches them")


def ran_again() -> UnsmoothError:
    """What to say of a second run in a batch with a mask: it may be of either."""
    got = "ones that ran again, on what may be other tokens"
    return expected("blocks that run once in a batch whose mask is of their tokens", got, "the data of one run alone")


def _hook_block(
    path: str,
    anatomy: Anatomy,
    hook: Hooks,
    watch: Watch,
    observer: Observer,
    sites: Sequence[str],
    on_call: CallObserver | None,
) -> None:
    block, host, stage, flow = anatomy.blocks[path], anatomy.host, anatomy.stage(path), anatomy.flow
    first, last = anatomy.ends_of(path)

    entered: list[int] = []

    def see(site: str, found: Tensor, extra: int, times: float | str = 1.0) -> None:
        if found.ndim == 2 and len(entered) == 3 and found.shape[0] == entered[0] * entered[1]:
            found = torch.unflatten(found, 0, entered[:2])  # some blocks run their MLP on all tokens in one row
        if not flow.fits(found):
            shape = "a nested tensor" if found.is_nested else f"shape {tuple(found.shape)}"
            hint = "a batched input without packing, or a blocks pattern for modules that pass on token vectors"
            problem = expected(f"(batch, tokens, dim) at {site} of block {path!r}", shape, hint)
            raise problem if site == "residual" else SiteError(str(problem), site)
        if site != "residual" and [*found.shape] != entered:
            got, hint = f"shape {tuple(found.shape)} where {tuple(entered)} entered", f"sites without {site!r}"
            raise SiteError(str(expected(f"all tokens of block {path!r} at {site}", got, hint)), site)
        if times != 1.0:
            found = found * multiplier(block, times)
        found = flow.laid_out(found, watch.lengths)
        observer(watch.layer, site, found[:, :-extra] if extra else found)

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        given = argument(args, kwargs, flow.enters) if flow.enters else None
        found = given if isinstance(given, Tensor) else first_input(args, kwargs)
        entered[:] = found.shape
        watch.called.add(path)
        if on_call is not None:
            on_call(path, args, kwargs)
        if watch.layer == 0:
            watch.real_tokens_BN = host.real_tokens(args, kwargs)
            if watch.real_tokens_BN is None and anatomy.reads.marked is not None:
                watch.real_tokens_BN = anatomy.mask_handed(module, args, kwargs)
            if watch.real_tokens_BN is None and not anatomy.is_known and anatomy.reads.tokens == "pixel_values":
                watch.real_tokens_BN = real_patches(args, kwargs, flow)
            watch.stage = 0 if flow.stages else stage
            if "residual" in sites:
                if flow.rows is not None:
                    watch.lengths = lengths_in(argument(args, kwargs, flow.rows), found.shape[-2])
                    ends_B1 = torch.tensor(watch.lengths, device=found.device).unsqueeze(1)
                    watch.real_tokens_BN = torch.arange(max(watch.lengths), device=found.device) < ends_B1
                see("residual", found, extra_tokens(block))
        elif anatomy.stream is None and anatomy.proposed and "residual" in sites and not edits_of(block):
            watch.handed_in(first_input(args, kwargs))
        watch.stage = stage
        watch.layer += 1

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        found = first_output(output) if flow.leaves is None else at(output, flow.leaves)
        if isinstance(found, Tensor):
            found = found + first_input(args, {}) if flow.summed else found
            watch.handed_on(found)
            see("residual", found, extra_tokens(block, left=True))
        elif not flow.ends:
            raise expected(
                "blocks that hand on their tokens", f"{type(found).__name__} from {path!r}", "another pattern"
            )

    hook(first.register_forward_pre_hook, enter, with_kwargs=True)
    for site, tap in host.taps(block).items() if {*sites} - {"residual"} else ():
        if site in sites:
            absent = partial(_absent, site, f"{path}.{tap.module}", [one for one in sites if one != site])
            shown = partial(see, site, extra=extra_tokens(block), times=tap.times)
            try:
                module = submodule(block, tap.module, host)
            except UnsmoothError as error:
                raise SiteError(str(error), site) from None
            _hook_tap(module, tap, hook, shown, absent)
    if "residual" in sites:
        hook(last.register_forward_hook, leave)


def _hook_tap(
    module: nn.Module, tap: Tap, hook: Hooks, see: Callable[[Tensor], None], absent: Callable[[str], SiteError]
) -> None:
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        show(find_input(args, kwargs), f"{len(args) + len(kwargs)} arguments without one")

    def after(module: nn.Module, args: Any, output: Any) -> None:
        show(find_output(output), type(output).__name__)

    def show(found: Tensor | None, got: str) -> None:
        if found is None:
            raise absent(got)
        see(found.clone() if tap.copied else found)

    if tap.end == "input":
        hook(module.register_forward_pre_hook, before, with_kwargs=True)
    else:
        hook(module.register_forward_hook, after)


def _absent(site: str, path: str, others: Sequence[str], got: str) -> SiteError:
    """A module inside a block that is not called with a tensor, or returns none."""
    hint = f"sites={list(others) or ['residual']}"
    return SiteError(str(expected(f"a tensor at the site {site!r}, which is {path!r},", got, hint)), site)


def submodule(block: nn.Module, path: str, host: Host) -> nn.Module:
    """The module at `path` inside a block that should have it."""
    try:
        return block.get_submodule(path)
    except AttributeError:
        raise expected(
            f"a module {path!r} in {host.name} block {type(block).__name__}",
            "none, so its library has another layout than the one known here",
            'sites=("residual",)',
        ) from None


def first_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The hidden states a module was called with: first tensor, `hidden_states`, or first keyword."""
    if (found := find_input(args, kwargs)) is not None:
        return found
    raise expected("a block called with a tensor", f"{len(args)} arguments without one", "another blocks pattern")


def find_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The same, or None where there is no tensor."""
    for value in (*args, kwargs.get("hidden_states"), *kwargs.values()):
        if isinstance(value, Tensor):
            return value
    return None


def with_first_input(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], tensor: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with another tensor in the place that `first_input` reads.

    >>> import torch
    >>> with_first_input((), {"mask": None, "hidden_states": torch.zeros(1)}, torch.ones(1))
    ((), {'mask': None, 'hidden_states': tensor([1.])})
    """
    was, places = first_input(args, kwargs), list(args)
    for place, value in enumerate(args):
        if value is was:
            places[place] = tensor
            return tuple(places), dict(kwargs)
    name = next(name for name, value in kwargs.items() if value is was)
    return args, {**kwargs, name: tensor}


def first_output(output: Any) -> Tensor:
    """The hidden states a module returned, alone or first in a tuple or a model output."""
    if (found := find_output(output)) is not None:
        return found
    raise expected("a block that returns a tensor", type(output).__name__, "another blocks pattern")


def find_output(output: Any) -> Tensor | None:
    """The same, or None where there is no tensor."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if isinstance(output, Mapping) else output
    for value in values if isinstance(values, Sequence) or isinstance(output, Mapping) else ():
        if isinstance(value, Tensor):
            return value
    return None
