"""Exact attention maps of any model as it runs, fused kernels or not, without asking the model for them.

A fused kernel never forms its map, but the call that starts it has all that the map is made of. Such calls, and
softmax where attention is written out, are seen on their way into torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unsmooth.errors import UnsmoothError
from unsmooth.models.hooks import Hooks, uncompiled, whole_sequences
from unsmooth.models.map_of_call import map_of_call
from unsmooth.models.remedied import extra_tokens
from unsmooth.models.watch import check_called, first_input, submodule

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
        self.reason = reason
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

    Layers are numbered from 1 by call order, as in `Anatomy.watch`. Maps are float32 or better, before any dropout,
    with all that shapes them in: masks, windows, rotary and relative positions, ALiBi, soft caps. A row that may
    look at nothing is zero. The model's outputs do not change by a bit.

    Args:
        anatomy: The model with its blocks found.
        observer: Called when a block has run. Each map is a copy and takes batch·heads·tokens² numbers.
        on_missing: Called for a block call without one such map; where it is None, the error is raised.
        site: "cross" for the maps of cross-attention (batch, heads, tokens, tokens of the other stack).

    Raises:
        NoAttentionMap: A fused kernel that torch cannot see into, several maps in one call (differential attention,
            windows), maps that are not square (a key/value cache), or blocks without cross-attention.

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
    paths = {path: _attention_path(anatomy, block, site) for path, block in anatomy.blocks.items()}
    recorder = _Recorder(square=site == "attention")
    with whole_sequences(anatomy.model), uncompiled(anatomy.model), Hooks() as hook:

        def restart(module: nn.Module, args: Any) -> None:
            recorder.call, recorder.depth = _Call(), 0
            recorder.called.clear()

        for entry in anatomy.entries:
            hook(entry.register_forward_pre_hook, restart)
        for path, block in anatomy.blocks.items():
            attention, batch_first = submodule(block, paths[path], anatomy.host), anatomy.host.batch_first(block)
            _hook_block(path, block, attention, batch_first, recorder, hook, observer, on_missing)
        for entry in anatomy.entries:
            hook(entry.register_forward_hook, lambda *_: check_called(anatomy, recorder.called))
        with recorder:
            yield


def _refuse_extra_tokens(anatomy: Anatomy) -> None:
    if any(map(extra_tokens, anatomy.blocks.values())):
        reason = "blocks with tokens that a remedy brought, on which a part of every row of attention lies"
        raise NoAttentionMap(None, reason, "the maps of the model without it")


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
    batch: int = 0
    tokens: int = 0
    maps: list[Tensor] = field(default_factory=list)
    other_shapes: list[tuple[int, ...]] = field(default_factory=list)


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
        if self.depth:
            # Before the call: nothing may have changed its arguments in place.
            self._note(map_of_call(func, args, kwargs))
        return func(*args, **kwargs)

    def _note(self, map_of: Tensor | None) -> None:
        if map_of is None:
            return
        call = self.call
        if map_of.ndim == 3 and call.batch and map_of.shape[0] % call.batch == 0:
            map_of = map_of.reshape(call.batch, -1, *map_of.shape[1:])
        fits = map_of.shape[-2] == call.tokens and (map_of.shape[-1] == call.tokens or not self.square)
        if map_of.ndim == 4 and map_of.shape[0] == call.batch and fits:
            call.maps.append(map_of)
        else:
            call.other_shapes.append(tuple(map_of.shape))


def _hook_block(
    path: str,
    block: nn.Module,
    attention: nn.Module,
    batch_first: bool,
    recorder: _Recorder,
    hook: Hooks,
    observer: MapObserver,
    on_missing: Missing | None,
) -> None:
    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        recorder.call = _Call(layer=recorder.call.layer + 1)
        recorder.called.add(path)
        # Of the block, not of its attention, which may look at windows: a map must be of all tokens.
        shape = first_input(args, kwargs).shape
        if len(shape) == 3:
            recorder.call.batch, recorder.call.tokens = shape[:2] if batch_first else (shape[1], shape[0])

    def open_eyes(module: nn.Module, args: Any) -> None:
        recorder.depth += 1

    def close_eyes(module: nn.Module, args: Any, output: Any) -> None:
        recorder.depth -= 1

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        call, recorder.call = recorder.call, _Call(layer=recorder.call.layer)
        if len(call.maps) == 1:
            observer(call.layer, call.maps[0])
            return
        missing = _missing(call)
        if on_missing is None:
            raise missing
        on_missing(missing)

    hook(block.register_forward_pre_hook, enter, with_kwargs=True)
    hook(attention.register_forward_pre_hook, open_eyes)
    # Also after an error, or what is called next would be taken for attention.
    hook(attention.register_forward_hook, close_eyes, always_call=True)
    hook(block.register_forward_hook, leave)


def _missing(call: _Call) -> NoAttentionMap:
    if call.maps:
        reason = f"{len(call.maps)}, so the block mixes tokens in more than one way (as differential attention does)"
        return NoAttentionMap(call.layer, reason, "this layer without attention maps")
    if call.other_shapes:
        shapes = ", ".join(map(str, call.other_shapes[:3]))
        reason = f"{shapes} for {call.tokens} tokens, as windows, cross-attention, a key/value cache or extra keys give"
        return NoAttentionMap(call.layer, reason, "a whole sequence in one pass with use_cache=False")
    reason = "none that torch can see, as flash and flex kernels give"
    return NoAttentionMap(call.layer, reason, 'loading with attn_implementation="sdpa" or "eager"')
