"""One batch seen from inside: what enters and leaves every block, its branches, its attention maps, and its call.

The call is kept so that a block can be run again, alone, at other points: that is what Jacobians need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from unsmooth.errors import expected
from unsmooth.models import Anatomy, NoAttentionMap, watch_attention
from unsmooth.models.remedied import extra_tokens, handed_on, handing_on
from unsmooth.models.watch import first_input, first_output
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
    """

    block: nn.Module
    path: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    batch_first: bool
    sites: dict[str, Tensor] = field(default_factory=dict)
    maps_BHNN: Tensor | None = None
    handed: Mapping[str, Any] | None = None

    def rerun(self, x_BND: Tensor) -> Tensor:
        """The block's output had `x_BND` entered it, everything else as it was."""
        x = x_BND if self.batch_first else x_BND.transpose(0, 1)
        args, kwargs = _with_input(self.args, self.kwargs, x)
        with handing_on(self.block, self.handed):
            out = first_output(self.block(*args, **kwargs))
        return out if self.batch_first else out.transpose(0, 1)


@dataclass
class BatchView:
    """What all layers did to one batch; `real_BN` is True for tokens that are not padding."""

    layers: list[LayerView]
    real_BN: Tensor
    missing_maps: tuple[str, ...] = ()


def observe(anatomy: Anatomy, inputs: RawBatch, real_BN: Tensor | None) -> BatchView:
    """Run the model once on `inputs` and keep what its blocks saw."""
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

    with ExitStack() as stack:
        # Ours first: the view of a layer must exist before anything in it is seen.
        stack.enter_context(_recording_calls(anatomy, layers))
        watch = stack.enter_context(anatomy.watch(note, anatomy.sites))
        try:
            stack.enter_context(
                watch_attention(anatomy, maps.__setitem__, lambda error: missing.setdefault(_no_maps(error)))
            )
        except NoAttentionMap as error:  # blocks of an unknown family
            missing[_no_maps(error)] = None
        call(anatomy.model, inputs)
        handed = watch.real_tokens_BN
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


@contextmanager
def _recording_calls(anatomy: Anatomy, layers: list[LayerView]) -> Iterator[None]:
    handles = []

    def recorder(path: str, block: nn.Module) -> Any:
        batch_first = anatomy.host.batch_first(block)

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            entering = first_input(args, kwargs)
            view = LayerView(block, path, args, dict(kwargs), batch_first, handed=handed_on(block))
            view.sites["input"] = entering if batch_first else entering.transpose(0, 1)
            layers.append(view)

        return enter

    def restart(module: nn.Module, args: Any) -> None:
        layers.clear()

    try:
        handles.append(anatomy.model.register_forward_pre_hook(restart))
        for path, block in anatomy.blocks.items():
            handles.append(block.register_forward_pre_hook(recorder(path, block), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _with_input(args: tuple[Any, ...], kwargs: Mapping[str, Any], x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with other hidden states, found the way `first_input` finds them."""
    old = first_input(args, kwargs)
    for index, value in enumerate(args):
        if value is old:
            return (*args[:index], x, *args[index + 1 :]), dict(kwargs)
    name = next(name for name, value in kwargs.items() if value is old)
    return args, {**kwargs, name: x}


@contextmanager
def differentiable() -> Iterator[None]:
    """Attention and encoder layers by way of operations that have forward derivatives; fused kernels have none."""
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
