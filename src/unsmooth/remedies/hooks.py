"""The hooks by which edits act. They are objects, not closures, so that a copied model has its own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models.host import Host
from unsmooth.models.watch import first_input, first_output
from unsmooth.models.wiring import Wiring
from unsmooth.remedies.base import Edit
from unsmooth.remedies.call import LOWEST_SEEN, Call, Volatile, read_mask
from unsmooth.remedies.memory import Memory
from unsmooth.remedies.passes import begin_pass, shared_in
from unsmooth.remedies.site import is_causal

# Where a module keeps its hooks, and what else it keeps under the same keys.
_TABLES = {
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_load_state_dict_pre_hooks": (),
}


class Hook:
    """One of ours, to be told from anybody else's."""


def remove_hooks(module: nn.Module, edit: Edit | None = None, kind: type[Hook] = Hook) -> None:
    """Take our hooks off a module: those of one edit or of one kind, or all."""
    for table, beside in _TABLES.items():
        hooks = getattr(module, table)
        for key in [key for key, hook in hooks.items() if _is_ours(hook, edit, kind)]:
            del hooks[key]
            for other in beside:
                getattr(module, other).pop(key, None)


def _is_ours(hook: Any, edit: Edit | None, kind: type[Hook]) -> bool:
    hook = getattr(hook, "hook", hook)  # torch wraps those that are called before a checkpoint is loaded
    return isinstance(hook, kind) and (edit is None or getattr(hook, "edit", None) is edit)


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
    """Before a block: note who sees whom in this call."""

    def __init__(
        self, home: nn.Module, now: Volatile, shared: Volatile, block: nn.Module, host: Host, wiring: Wiring
    ) -> None:
        self.home = home
        self.now = now
        self.shared = shared
        self.host = host
        self.batch_first = host.batch_first(block)
        self.attention = block.get_submodule(wiring.attention)
        self.layer: int | None = getattr(self.attention, "layer_idx", None)
        names = list(inspect.signature(block.forward).parameters)
        self.at = {name: place for place, name in enumerate(names)}

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called by torch before the block."""
        stream = first_input(args, kwargs)
        shared = shared_in(stream, self.shared)
        if stream.ndim != 3 or stream.is_nested:
            got = "a nested tensor" if stream.is_nested else f"shape {tuple(stream.shape)}"
            raise expected("a block called with (batch, tokens, dim)", got, "a batch, if of one")
        if not self.batch_first:
            stream = stream.transpose(0, 1)
        batch, tokens = stream.shape[:2]
        causal = is_causal(self.attention)
        if causal is None:
            causal = self._causal_by_call(args, kwargs)
            real_BN, starts_BN = self.host.real_tokens(args, kwargs), None
        else:
            real_BN, starts_BN = self._masks(args, kwargs, batch, tokens, causal)
        cache = self._argument("past_key_values", args, kwargs)
        cache = cache if cache is not None else self._argument("layer_past", args, kwargs)
        memory = Memory(cache, self.layer) if cache is not None and causal and self.layer is not None else None
        self.now.held["call"] = Call(stream, causal, real_BN, starts_BN, memory, shared)

    def _argument(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if name in kwargs:
            return kwargs[name]
        place = self.at.get(name)
        return args[place] if place is not None and place < len(args) else None

    def _masks(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], batch: int, tokens: int, causal: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        # Inside a CUDA graph transformers hands on a mask even where nothing is masked.
        mask = self._argument("attention_mask", args, kwargs) if self.host.pads else None
        held = self.shared.held.get("mask")
        if held is None or held[0] is not mask:  # most models hand all their blocks the same one
            held = self.shared.held["mask"] = (mask, read_mask(mask, batch, tokens, causal))
        return held[1]

    def _causal_by_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Torch's layer is causal where its mask is; torch itself recognises only one form of such a mask."""
        edits = [edit for edit in self.home.children() if isinstance(edit, Edit) and edit.causal != "unchanged"]
        mask = self._argument("src_mask", args, kwargs)
        if not edits:  # nobody asks
            return False
        causal = bool(self._argument("is_causal", args, kwargs)) or (mask is not None and self._hides_future(mask))
        if causal and any(edit.would_leak for edit in edits):
            raise expected(
                "a remedy with a causal form where attention is causal",
                f"{edits[0].name} with options that let a token see later ones",
                "its default options, or allow_leak=True if that is what you want",
            )
        return causal

    def _hides_future(self, mask: Tensor) -> bool:
        """Reads the mask: a graph break where a model is compiled, and none where `is_causal=True` says it."""
        held = self.shared.held.get("mask")
        if held is None or held[0] is not mask:
            seen = ~mask if mask.dtype == torch.bool else mask > LOWEST_SEEN
            held = self.shared.held["mask"] = (mask, seen.shape[-1] > 1 and not bool(seen.triu(1).any()))
        return bool(held[1])


class LeaveBlock(Hook):
    """After a block: let edits change what it hands on, in the order they were applied, and let go of the call."""

    def __init__(self, home: nn.Module, now: Volatile, batch_first: bool) -> None:
        self.home = home
        self.now = now
        self.batch_first = batch_first

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Called by torch after the block."""
        call = self.now.held.pop("call", None)
        edits = [edit for edit in self.home.children() if isinstance(edit, Edit) and "on_block" in edit.places()]
        if call is None or not edits:
            return None
        out = first_output(output)
        x = out if self.batch_first else out.transpose(0, 1)
        for edit in edits:
            x = edit.on_block(x, call)
        return _with_first(output, x if self.batch_first else x.transpose(0, 1))


class EditOutput(Hook):
    """Put an edit of a module's first output in its place."""

    def __init__(self, edit: Edit, place: str, now: Volatile, batch_first: bool) -> None:
        self.edit = edit
        self.place = place
        self.now = now
        self.batch_first = batch_first

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Called by torch after the module."""
        call = self.now.held.get("call")
        if call is None:  # the module is called by itself, outside its block
            return None
        found = first_output(output)
        x = found if self.batch_first else found.transpose(0, 1)
        edited = getattr(self.edit, self.place)(x, call)
        return _with_first(output, edited if self.batch_first else edited.transpose(0, 1))


class AddToSum(Hook):
    """Add what an edit returns to the sum of stream and branch, which the norm of a post-norm block reads."""

    def __init__(self, edit: Edit, place: str, now: Volatile, batch_first: bool) -> None:
        self.edit = edit
        self.place = place
        self.now = now
        self.batch_first = batch_first

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> Any:
        """Called by torch before the norm."""
        call = self.now.held.get("call")
        if call is None:
            return None
        x = args[0] if self.batch_first else args[0].transpose(0, 1)
        x = x + getattr(self.edit, self.place)(x, call)
        return (x if self.batch_first else x.transpose(0, 1), *args[1:])


class AddToBranch(EditOutput):
    """The same for attention where no module reads the sum: by way of the branch, so it has to come last there."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Called by torch after the branch."""
        call = self.now.held.get("call")
        if call is None:
            return None
        found = first_output(output)
        x = found if self.batch_first else found.transpose(0, 1)
        x = x + self.edit.on_attention_sum(call.stream + x, call)
        return _with_first(output, x if self.batch_first else x.transpose(0, 1))


class EditValues(Hook):
    """Note the values of this call for edits of the heads and, where `edit` is one, let it change them."""

    def __init__(self, edit: Edit | None, now: Volatile, wiring: Wiring) -> None:
        self.edit = edit
        self.now = now
        self.wiring = wiring

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        """Called by torch after the values are made."""
        call = self.now.held.get("call")
        if call is None:
            return None
        values = self.wiring.values_of(output)
        call.values = values
        if self.edit is None:
            return None
        call.values = self.edit.on_values(values, call)
        if values.numel() == output.numel():
            edited: Tensor = call.values.reshape(output.shape)
            return edited
        changed = output.clone()  # fused with queries and keys, which stay as they are
        self.wiring.values_of(changed).copy_(call.values)
        return changed


class EditHeads(Hook):
    """Let an edit change what the output projection reads."""

    def __init__(self, edit: Edit, now: Volatile, wiring: Wiring) -> None:
        self.edit = edit
        self.now = now
        self.heads = wiring.heads

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> Any:
        """Called by torch before the heads are projected."""
        call = self.now.held.get("call")
        if call is None:
            return None
        heads_BNHE = args[0].unflatten(-1, (self.heads.query, self.heads.dim))
        return (self.edit.on_heads(heads_BNHE, call).flatten(-2), *args[1:])


class FitCheckpoint(Hook):
    """Before a checkpoint is loaded into a block: give edits that it does not know what they need."""

    def __init__(self, index: int, depth: int, host: Host, path: str) -> None:
        self.index, self.depth, self.host, self.path = index, depth, host, path

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Called by torch before the block's part of a checkpoint is read."""
        from unsmooth.remedies.block import HOME, site_of

        if not any(key.startswith(prefix) for key in state):
            return  # a checkpoint of some other part of the model
        for name, edit in module.get_submodule(HOME).named_children():
            own = f"{prefix}{HOME}.{name}."
            if not any(key.startswith(own) for key in state) and isinstance(edit, Edit):
                edit.adopt(state, own, prefix, site_of(self.host, module, self.path, self.index, self.depth))


def _with_first(output: Any, tensor: Tensor) -> Any:
    if isinstance(output, Tensor):
        return tensor
    if isinstance(output, tuple):
        return (tensor, *output[1:])
    raise expected("a module that returns a tensor or a tuple", type(output).__name__, "another model")
