"""One batch seen from inside: what enters and leaves every block, its branches, its attention maps, and its call.

The call is kept so that a block can be run again, alone, at other points: that is what Jacobians need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unsmooth.errors import expected
from unsmooth.models import Anatomy, NoAttentionMap, Tap, watch_attention
from unsmooth.models.look import argument, in_batch, in_row, lengths_in
from unsmooth.models.map_of_call import multi_head_signature
from unsmooth.models.remedied import extra_tokens, handed_on, handing_on
from unsmooth.models.watch import first_input, first_output, none_called, ran_again, with_first_input
from unsmooth.models.wire import wire
from unsmooth.scanning.calling import call
from unsmooth.scanning.data import RawBatch


@dataclass
class LayerView:
    """What one layer did to one batch.

    Attributes:
        block: Its block.
        path: The block's module path.
        args: Positional arguments of the block's call.
        kwargs: Its keyword arguments.
        sites: Tensors (batch, tokens, dim) by site; "input" is the stream that enters.
        maps_BHNN: Attention, or None where it could not be had.
        handed: What remedies in earlier blocks had handed on when the block was called; None for a plain block.
        taps: Where in the block its sites are.
        lengths: Tokens of each sequence, where the block was called with them in one row.
    """

    block: nn.Module
    path: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    batch_first: bool
    sites: dict[str, Tensor] = field(default_factory=dict)
    maps_BHNN: Tensor | None = None
    handed: Mapping[str, Any] | None = None
    taps: Mapping[str, Tap] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()

    def rerun(self, x_BND: Tensor) -> Tensor:
        """The block's output had `x_BND` entered it, everything else as it was."""
        x = self.restored(x_BND, first_input(self.args, self.kwargs))
        args, kwargs = with_first_input(self.args, self.kwargs, x)
        with handing_on(self.block, self.handed):
            return self.batched(first_output(self.block(*args, **kwargs)))

    def batched(self, x: Tensor) -> Tensor:
        """What the block has, as (batch, tokens, dim)."""
        if self.lengths:
            return in_batch(x, self.lengths)
        return x if self.batch_first else x.transpose(0, 1)

    def restored(self, x_BND: Tensor, like: Tensor) -> Tensor:
        """The same as the block has it."""
        if self.lengths:
            return in_row(x_BND, self.lengths, like)
        return x_BND if self.batch_first else x_BND.transpose(0, 1)


@dataclass
class BatchView:
    """What all layers did to one batch; `real_BN` is True for tokens that are not padding."""

    layers: list[LayerView]
    real_BN: Tensor
    missing_maps: tuple[str, ...] = ()


def observe(
    anatomy: Anatomy,
    inputs: RawBatch,
    real_BN: Tensor | None,
    called: nn.Module | None = None,
    check: Callable[[Tensor | None], None] = lambda handed_BN: None,
) -> BatchView:
    """Run the model, or what holds it or is its part, once on `inputs` and keep what its blocks saw.

    `check` is shown the mask that blocks are handed.
    """
    if any(map(extra_tokens, anatomy.blocks.values())):
        got = "blocks with tokens that a remedy brought, of which no rule knows"
        raise expected("a model whose tokens are all its own", got, "explaining it from weights alone, without data")
    layers: list[LayerView] = []
    maps: dict[int, Tensor] = {}
    missing: dict[str, None] = {}

    def note(layer: int, site: str, tensor: Tensor) -> None:
        if layer == 0:
            return
        layers[layer - 1].sites["output" if site == "residual" else site] = tensor

    def enter(path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if watch.layer == 0:
            if layers and real_BN is not None:
                raise ran_again()
            layers.clear()
        block, entering = anatomy.blocks[path], first_input(args, kwargs)
        batch_first, taps = anatomy.batch_first, anatomy.host.taps(block)
        rows = anatomy.flow.rows
        lengths = lengths_in(argument(args, kwargs, rows), entering.shape[-2]) if rows else ()
        sites = {"input": anatomy.flow.laid_out(entering, lengths)}
        view = LayerView(block, path, args, dict(kwargs), batch_first, sites, None, handed_on(block), taps, lengths)
        layers.append(view)

    if anatomy.is_open:
        wire(anatomy.blocks.values(), lambda: call(anatomy.model if called is None else called, inputs))
    with ExitStack() as stack:
        watch = stack.enter_context(anatomy.watch(note, anatomy.sites, on_call=enter))
        try:
            stack.enter_context(
                watch_attention(anatomy, maps.__setitem__, lambda error: missing.setdefault(_no_maps(error)))
            )
        except NoAttentionMap as error:  # blocks of an unknown family
            missing[_no_maps(error)] = None
        call(anatomy.model if called is None else called, inputs)
        handed = watch.real_tokens_BN
    check(handed)
    if not layers:
        raise none_called()
    for number, layer in enumerate(layers, start=1):
        layer.maps_BHNN = maps.get(number)
        # In a model that is spread over devices, a block may read its input from another one.
        layer.sites = {site: tensor.to(layer.sites["output"].device) for site, tensor in layer.sites.items()}
    real = real_BN if real_BN is not None else handed
    if real is None:
        some = layers[0].sites["input"]
        real = torch.ones(some.shape[:2], dtype=torch.bool, device=some.device)
    return BatchView(layers, real.to(layers[0].sites["input"].device), tuple(missing))


def _no_maps(error: NoAttentionMap) -> str:
    return f"No attention map was seen ({error.reason}), so verdicts are from weights alone."


class Differentiable(TorchFunctionMode):
    """Attention and encoder layers by way of operations that have forward derivatives; fused kernels have none.

    For this thread, where torch's switches (`sdpa_kernel`, `set_fastpath_enabled`) are for all of them.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.scaled_dot_product_attention:
            return _plain_attention(*args, **kwargs)
        if func is nn.functional.multi_head_attention_forward:  # what it calls inside cannot be seen
            given = multi_head_signature().bind(*args, **kwargs).arguments
            mixed, maps = func(**(given | {"need_weights": True}))
            return mixed, maps if given.get("need_weights", True) else None
        return func(*args, **kwargs)


def _plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = query.new_zeros(attn_mask.shape).masked_fill(~attn_mask, -torch.inf)
    found: Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
    return found
