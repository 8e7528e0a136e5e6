"""Exact attention maps of any model as it runs, fused kernels or not, without asking the model for them.

A fused kernel never forms its map, but the call that starts it has all that the map is made of. Such calls, and
softmax where attention is written out, are seen on their way into torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unsmooth.errors import UnsmoothError
from unsmooth.models.hooks import Hooks, uncompiled, whole_sequences
from unsmooth.models.look import rows_among
from unsmooth.models.map_of_call import map_of_call
from unsmooth.models.remedied import extra_tokens
from unsmooth.models.watch import check_called, first_input, submodule
from unsmooth.models.windows import map_of_windows

if TYPE_CHECKING:
    from unsmooth.models.anatomy import Anatomy

MapObserver = Callable[[int, Tensor], None]


class NoAttentionMap(UnsmoothError):  # noqa: N818 - it names what is missing, like KeyboardInterrupt
    """A block call has no one square attention map.

    Args:
        layer: The call, from 1; None where no block of the model can have one.
        reason: Why, in words.
        hint: What to try.
    """

    def __init__(self, layer: int | None, reason: str, hint: str) -> None:
        self.layer = layer
        self.reason, self.hint = reason, hint
        where = "every layer" if layer is None else f"layer {layer}"
        super().__init__(f"Expected one attention map at {where} but got {reason}. Try {hint}.")


Missing = Callable[[NoAttentionMap], None]


@contextmanager
def watch_attention(
    anatomy: Anatomy,
    observer: MapObserver,
    on_missing: Missing | None = None,
    site: Literal["attention", "cross"] = "attention",
) -> Iterator[None]:
    """Call `observer(layer, maps_BHNN)` for every block call while the context is open.

    Layers are numbered from 1 by call order, as in `Anatomy.watch`. Of blocks that have the sequences of a batch in
    one row, and are told where each begins, maps are of a batch too, filled up with zeros. Maps are float32 or
    better, before any dropout, with all that shapes them in: masks, windows, rotary and relative positions, ALiBi,
    soft caps. A row that may look at nothing is zero, and one that lies in part on an attention sink, a column that
    is dropped, sums to less than one. A layer that looks at windows has one map of all tokens, zero between windows.
    The model's outputs do not change by a bit.

    Args:
        anatomy: The model with its blocks found.
        observer: Called when a block has run. Each map is a copy and takes batch·heads·tokens² numbers.
        on_missing: Called for a block call without one such map; where it is None, the error is raised.
        site: "cross" for the maps of cross-attention (batch, heads, tokens, tokens of the other stack).

    Raises:
        NoAttentionMap: A fused kernel that torch cannot see into, several maps in one call (differential attention),
            maps that are not square (a key/value cache), windows that are filled up, or blocks without cross-attention.

    Example:
        >>> import torch
        >>> from unsmooth.models import find_anatomy
        >>> layer = nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        >>> with watch_attention(find_anatomy(model), lambda layer, maps_BHNN: print(layer, maps_BHNN.shape)):
        ...     _ = model(torch.randn(1, 3, 4))
        1 torch.Size([1, 2, 3, 3])
        2 torch.Size([1, 2, 3, 3])
    """
    _refuse_extra_tokens(anatomy)
    modules = _attention_modules(anatomy, site, all_or_none=on_missing is None)
    recorder = _Recorder(square=site == "attention")
    with whole_sequences(anatomy.model), uncompiled(anatomy.model), Hooks() as hook:

        def restart(module: nn.Module, args: Any) -> None:
            recorder.call, recorder.depth = _Call(), 0
            recorder.called.clear()

        for entry in anatomy.entries:
            hook(entry.register_forward_pre_hook, restart)
        for path, block in anatomy.blocks.items():
            sizes = partial(_sizes, anatomy.flow.axes, anatomy.stream is None and not anatomy.is_known)
            _hook_block(path, block, modules[path], sizes, recorder, hook, observer, on_missing)
        for entry in anatomy.entries:
            hook(entry.register_forward_hook, lambda *_: check_called(anatomy, recorder.called))
        with recorder:
            yield


def _refuse_extra_tokens(anatomy: Anatomy) -> None:
    if any(map(extra_tokens, anatomy.blocks.values())):
        reason = "blocks with tokens that a remedy brought, on which a part of every row of attention lies"
        raise NoAttentionMap(None, reason, "the maps of the model without it")


def _attention_modules(anatomy: Anatomy, site: str, all_or_none: bool) -> dict[str, nn.Module | NoAttentionMap]:
    """The module inside which the map of each block is formed, or why there is none in a block that some others have.

    Raises:
        NoAttentionMap: One of the blocks that attend has none, where they are `all_or_none`, or all have.
    """
    from unsmooth.models.wire import attends  # which is built on this file

    found: dict[str, nn.Module | NoAttentionMap] = {}
    missing: dict[str, NoAttentionMap] = {}
    for path, block in anatomy.blocks.items():
        try:
            found[path] = submodule(block, _attention_path(anatomy, block, site), anatomy.host)
        except NoAttentionMap as error:
            missing[path] = error
    for path, why in missing.items():
        if len(missing) == len(anatomy.blocks) or (all_or_none and (site == "cross" or attends(anatomy.blocks[path]))):
            raise why
        found[path] = why
    return found


def _attention_path(anatomy: Anatomy, block: nn.Module, site: str) -> str:
    host = anatomy.host
    if site == "cross":
        if "cross" not in host.taps(block):
            raise NoAttentionMap(None, f"{host.name} blocks without cross-attention", "the maps of attention itself")
        return host.cross(block).module
    if host.attention_module is None:
        reason = f"{host.name} blocks, whose attention is not known"
        raise NoAttentionMap(None, reason, "a model of a family that `unsmooth ls models` lists")
    try:
        return host.attention_module(block)
    except UnsmoothError:
        from unsmooth.models.wire import why_unknown  # which is built on this file

        reason = f"{host.name} blocks, whose attention is not known: {why_unknown(block, 'attention_module')}"
        raise NoAttentionMap(None, reason, "sites that need no maps") from None


def row_sum_error(maps_BHNN: Tensor, mask_BN: Tensor | None = None) -> float:
    """The largest |Σ_j A_ij − 1| over rows of real tokens: 0 for attention as P1 and P2 have it.

    >>> import torch
    >>> maps_BHNN = torch.tensor([[[[0.5, 0.5], [0.25, 0.25]]]])
    >>> row_sum_error(maps_BHNN)
    0.5
    >>> row_sum_error(maps_BHNN, torch.tensor([[True, False]]))
    0.0
    """
    error_BHN = (maps_BHNN.sum(dim=-1) - 1.0).abs()
    if mask_BN is not None:
        error_BHN = error_BHN.masked_fill(~mask_BN.to(error_BHN.device)[:, None], 0.0)
    return float(error_BHN.max()) if error_BHN.numel() else 0.0


@dataclass
class _Call:
    """What has been seen of one call of a block."""

    layer: int = 0
    sizes: list[tuple[int, int]] = field(default_factory=list)
    # Of the sequences in one row, where there are some.
    lengths: tuple[int, ...] = ()
    maps: list[Tensor] = field(default_factory=list)
    others: list[Tensor] = field(default_factory=list)
    # What softmax gave, by its identity, while the block may still take a part of it.
    given: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class _Recorder(TorchFunctionMode):
    """Sees every torch function; notes the maps of those called inside an attention module."""

    def __init__(self, square: bool) -> None:
        super().__init__()
        self.square = square
        self.call = _Call()
        self.called: set[str] = set()
        self.depth = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.depth:
            return func(*args, **kwargs)
        # Before the call: nothing may have changed its arguments in place.
        found, call = map_of_call(func, args, kwargs), self.call
        gave = func(*args, **kwargs)
        if found is not None and not self._fits(found):
            call.others.append(found)
            call.given[id(gave)] = gave, found
        elif func is Tensor.__getitem__ and id(args[0]) in call.given:
            # A column for a sink is dropped after the softmax: the map is what is left.
            whole = call.given[id(args[0])][1]
            if self._fits(whole[args[1]]):
                call.others = [one for one in call.others if one is not whole]
        return gave

    def _fits(self, map_of: Tensor) -> bool:
        """Whether it is a map of all tokens, which is kept then."""
        for batch, tokens in self.call.sizes:
            whole = map_of
            if map_of.ndim == 3 and batch and map_of.shape[0] % batch == 0:
                whole = map_of.reshape(batch, -1, *map_of.shape[1:])
            fits = whole.shape[-2] == tokens and (whole.shape[-1] == tokens or not self.square)
            if whole.ndim == 4 and whole.shape[0] == batch and (fits or (self.call.lengths and self.square)):
                self.call.maps.append(whole)
                return True
        return False


def _sizes(axes: str, unsure: bool, shape: torch.Size) -> list[tuple[int, int]]:
    """How many sequences and tokens a stream may have; several where its layout is not known.

    >>> _sizes("BND", True, torch.Size([17, 3, 8])), _sizes("BND", False, torch.Size([2, 4, 4, 8]))
    ([(17, 3), (3, 17)], [(2, 16), (2, 32)])
    """
    if len(shape) == 4:
        return [(shape[0], shape[1] * shape[2]), (shape[0], shape[2] * shape[3])]
    if len(shape) != 3:
        return []
    found = [(shape[0], shape[1]), (shape[1], shape[0])]
    return found[::-1] if axes == "NBD" else found[: 1 + unsure]


def _hook_block(
    path: str,
    block: nn.Module,
    attention: nn.Module | NoAttentionMap,
    sizes: Callable[[torch.Size], list[tuple[int, int]]],
    recorder: _Recorder,
    hook: Hooks,
    observer: MapObserver,
    on_missing: Missing | None,
) -> None:
    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        recorder.call = _Call(layer=recorder.call.layer + 1)
        recorder.called.add(path)
        # Of the block, not of its attention, which may look at windows: a map must be of all tokens.
        call, shape = recorder.call, first_input(args, kwargs).shape
        rows = rows_among(module, args, kwargs, shape)
        call.sizes, call.lengths = (sizes(shape), ()) if rows is None else ([(1, shape[-2])], rows[1])

    def open_eyes(module: nn.Module, args: Any) -> None:
        recorder.depth += 1

    def close_eyes(module: nn.Module, args: Any, output: Any) -> None:
        recorder.depth -= 1

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        call, recorder.call = recorder.call, _Call(layer=recorder.call.layer)
        if call.lengths:
            call.maps = _of_each(call.maps, call.lengths)
        elif not call.maps and len(call.others) == 1 and recorder.square and isinstance(attention, nn.Module):
            call.maps += map_of_windows(module, attention, args, kwargs, call.others[0], call.sizes)
        if len(call.maps) == 1:
            observer(call.layer, call.maps[0])
            return
        missing = _missing(call)
        if isinstance(attention, NoAttentionMap):
            missing = NoAttentionMap(call.layer, attention.reason, attention.hint)
        if on_missing is None:
            raise missing
        on_missing(missing)

    hook(block.register_forward_pre_hook, enter, with_kwargs=True)
    if not isinstance(attention, NoAttentionMap):
        hook(attention.register_forward_pre_hook, open_eyes)
        # Also after an error, or what is called next would be taken for attention.
        hook(attention.register_forward_hook, close_eyes, always_call=True)
    hook(block.register_forward_hook, leave, with_kwargs=True)


def _of_each(maps: list[Tensor], lengths: tuple[int, ...]) -> list[Tensor]:
    """The maps of sequences in one row as one of a batch; as they are, where they are not of those sequences."""
    if len(maps) == 1 and maps[0].shape[-1] == sum(lengths):
        ends = list(accumulate(lengths))
        maps = [maps[0][..., end - one : end, end - one : end] for end, one in zip(ends, lengths, strict=True)]
    if tuple(one.shape[-1] for one in maps) != lengths:
        return maps
    most = max(lengths)
    filled = [nn.functional.pad(one, (0, most - one.shape[-1], 0, most - one.shape[-2])) for one in maps]
    return [torch.cat(filled)]


def _missing(call: _Call) -> NoAttentionMap:
    if call.maps:
        reason = f"{len(call.maps)}, so the block mixes tokens in more than one way (as differential attention does)"
        return NoAttentionMap(call.layer, reason, "this layer without attention maps")
    if call.others:
        shapes = ", ".join(str(tuple(one.shape)) for one in call.others[:3])
        tokens = call.sizes[0][1] if call.sizes else "unknown"
        reason = f"{shapes} for {tokens} tokens, as windows, cross-attention, a key/value cache or extra keys give"
        return NoAttentionMap(call.layer, reason, "a whole sequence in one pass with use_cache=False")
    reason = "none that torch can see, as flash and flex kernels give"
    return NoAttentionMap(call.layer, reason, 'loading with attn_implementation="sdpa" or "eager"')
