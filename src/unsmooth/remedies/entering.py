"""Hooks before a pass and before each of its blocks: what an edit must know about the call it is in."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models.host import Host
from unsmooth.models.watch import first_input, with_first_input
from unsmooth.models.wiring import Wiring
from unsmooth.remedies.base import Edit, leak
from unsmooth.remedies.call import LOWEST_SEEN, Call, Volatile, packed_starts, read_mask
from unsmooth.remedies.hooks import Hook, turned
from unsmooth.remedies.memory import Memory
from unsmooth.remedies.passes import begin_pass, shared_in
from unsmooth.remedies.site import is_causal

# What blocks call their masks.
_MASKS = ("attention_mask", "attn_mask", "src_mask", "src_key_padding_mask", "tgt_mask", "tgt_key_padding_mask")


class EnterStack(Hook):
    """Before a pass of the stack: forget the last one, and let edits do what they do for all layers at once."""

    def __init__(self, shared: Volatile, blocks: list[nn.Module]) -> None:
        self.shared = shared
        self.blocks = blocks

    def __call__(self, module: nn.Module, args: Any) -> None:
        """Called by torch before the stack."""
        begin_pass(self.shared)
        together: dict[type[Edit], list[Edit]] = {}
        for block in self.blocks:
            for edit in block.children():
                if type(edit).prepare.__func__ is not Edit.prepare.__func__:  # type: ignore[attr-defined]
                    together.setdefault(type(edit), []).append(edit)  # type: ignore[arg-type]
        for kind, edits in together.items():
            kind.prepare(edits)


class LeaveStack(Hook):
    """After a pass: let go of what its blocks shared, unless they may run again in the backward pass."""

    def __init__(self, shared: Volatile) -> None:
        self.shared = shared

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        """Called by torch after the stack."""
        # Compiled, what is left would be an output more, and a reason to compile again.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.shared.held.pop("mask", None)
        else:
            self.shared.held.clear()


class EnterBlock(Hook):
    """Before a block: note who sees whom in this call, and let edits change the stream that it reads."""

    def __init__(
        self, home: nn.Module, now: Volatile, shared: Volatile, block: nn.Module, host: Host, wiring: Wiring
    ) -> None:
        self.home = home
        self.now = now
        self.shared = shared
        self.host = host
        self.batch_first = host.batch_first(block)
        self.wiring = wiring
        self.attention = block.get_submodule(wiring.attention)
        self.layer: int | None = getattr(self.attention, "layer_idx", None)
        names = list(inspect.signature(block.forward).parameters)
        self.at = {name: place for place, name in enumerate(names)}

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called by torch before the block."""
        stream = first_input(args, kwargs)
        shared = shared_in(stream, self.shared)
        if stream.ndim != 3 or stream.is_nested:
            got = "a nested tensor" if stream.is_nested else f"shape {tuple(stream.shape)}"
            raise expected("a block called with (batch, tokens, dim)", got, "a batch, if of one")
        stream = turned(stream, self.batch_first)
        batch, tokens = stream.shape[:2]
        causal = is_causal(self.attention, self.wiring)
        if causal is None:
            causal = self._causal_by_call(args, kwargs)
            real_BN, starts_BN = self.host.real_tokens(args, kwargs), None
        else:
            causal = causal or self._causal_by_call(args, kwargs)  # timm's blocks may be told so
            real_BN, starts_BN = self._masks(args, kwargs, batch, tokens, causal)
        cache = self._argument("past_key_values", args, kwargs)
        cache = cache if cache is not None else self._argument("layer_past", args, kwargs)
        memory = Memory(cache, self.layer) if cache is not None and causal and self.layer is not None else None
        masked = any(self._argument(name, args, kwargs) is not None for name in _MASKS)
        call = self.now.held["call"] = Call(stream, causal, real_BN, starts_BN, memory, shared, masked=masked)
        for edit in self.home.children():
            if isinstance(edit, Edit) and "on_entering" in edit.places():
                call.stream = edit.on_entering(call.stream, call)
        if call.stream is stream:
            return None
        return with_first_input(args, kwargs, turned(call.stream, self.batch_first))

    def _argument(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if name in kwargs:
            return kwargs[name]
        place = self.at.get(name)
        return args[place] if place is not None and place < len(args) else None

    def _masks(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], batch: int, tokens: int, causal: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        # Inside a CUDA graph transformers hands on a mask even where nothing is masked.
        mask = whole = self._argument("attention_mask", args, kwargs) if self.host.pads else None
        if mask is None:  # timm's word for it, in any shape that torch's attention takes
            mask = self._argument("attn_mask", args, kwargs)
            whole = None if mask is None else mask[(None,) * (4 - mask.ndim)]
        held = self.shared.held.get("mask")
        if held is None or held[0] is not mask:  # most models hand all their blocks the same one
            held = self.shared.held["mask"] = (mask, read_mask(whole, batch, tokens, causal))
        if mask is None and causal and batch == 1 and self._in_one_kernel():
            return None, packed_starts(kwargs, tokens)
        return held[1]

    def _in_one_kernel(self) -> bool:
        """Whether attention is a kernel that is told about packed rows beside the mask."""
        implementation = getattr(getattr(self.attention, "config", None), "_attn_implementation", None)
        return "flash" in str(implementation)

    def _causal_by_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Torch's layer is causal where its mask is; torch itself recognises only one form of such a mask."""
        edits = [edit for edit in self.home.children() if isinstance(edit, Edit) and edit.causal != "unchanged"]
        if not edits:  # nobody asks
            return False
        said = (self._argument(name, args, kwargs) for name in ("is_causal", "tgt_is_causal"))
        masks = (self._argument(name, args, kwargs) for name in ("src_mask", "tgt_mask"))
        causal = any(map(bool, said)) or any(self._hides_future(mask) for mask in masks if mask is not None)
        leaking = [edit for edit in edits if edit.would_leak]
        if causal and leaking:
            raise leak("where attention is causal", type(leaking[0]))
        return causal

    def _hides_future(self, mask: Tensor) -> bool:
        """Reads the mask: a graph break where a model is compiled, and none where `is_causal=True` says it."""
        held = self.shared.held.get("mask")
        if held is None or held[0] is not mask:
            seen = ~mask if mask.dtype == torch.bool else mask > LOWEST_SEEN
            held = self.shared.held["mask"] = (mask, seen.shape[-1] > 1 and not bool(seen.triu(1).any()))
        return bool(held[1])
