"""The hooks by which edits act. They are objects, not closures, so that a copied model has its own."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models.host import Host, Tap, multiplier
from unsmooth.models.watch import first_output
from unsmooth.models.wiring import ValueParts
from unsmooth.remedies.base import Edit
from unsmooth.remedies.call import Call, Volatile
from unsmooth.remedies.passes import end_past_the_stack

# Where a module keeps its hooks, and what else it keeps under the same keys.
_TABLES = {
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_load_state_dict_pre_hooks": (),
}


class Hook:
    """One of ours, to be told from anybody else's."""


def remove_hooks(
    module: nn.Module, edit: Edit | None = None, kind: type[Hook] = Hook, shared: Volatile | None = None
) -> None:
    """Take our hooks off a module: those of one edit, of one kind or of one stack, or all."""
    for table, beside in _TABLES.items():
        hooks = getattr(module, table)
        for key in [key for key, hook in hooks.items() if _is_ours(hook, edit, kind, shared)]:
            del hooks[key]
            for other in beside:
                getattr(module, other).pop(key, None)


def _is_ours(hook: Any, edit: Edit | None, kind: type[Hook], shared: Volatile | None) -> bool:
    hook = getattr(hook, "hook", hook)  # torch wraps those that are called before a checkpoint is loaded
    of_edit = edit is None or getattr(hook, "edit", None) is edit
    return isinstance(hook, kind) and of_edit and (shared is None or getattr(hook, "shared", None) is shared)


class LeaveBlock(Hook):
    """After a block: let edits change what it hands on, in the order they were applied, and let go of the call."""

    def __init__(self, home: nn.Module, now: Volatile, batch_first: bool) -> None:
        self.home = home
        self.now = now
        self.batch_first = batch_first

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Called by torch after the block."""
        call = self.now.here().get("call")
        self.now.end()
        # No output: the block raised an error, as it does in a backward pass that needs no more of it.
        changed = None if call is None or output is None else self._changed(output, call)
        if self.home.is_last:
            end_past_the_stack(self.home.shared)  # type: ignore[arg-type]
        return changed

    def _changed(self, output: Any, call: Call) -> Any:
        """What the block hands on; None where it stays as it is."""
        edits = [edit for edit in self.home.children() if isinstance(edit, Edit)]
        due = [(edit, place) for place in ("on_block", "on_leaving") for edit in edits if place in edit.places()]
        if not due:
            return None
        x = first_output(output)
        x_BND = call.batched(x, self.batch_first)
        for edit, place in due:
            x_BND = getattr(edit, place)(x_BND, call)
        return _with_first(output, call.restored(x_BND, x, self.batch_first))


class EditStream(Hook):
    """Of one edit at one place: put what it makes of the stream, or of a branch, where a module reads or gives it."""

    def __init__(self, edit: Edit, place: str, now: Volatile, batch_first: bool) -> None:
        self.edit = edit
        self.place = place
        self.now = now
        self.batch_first = batch_first

    def edited(self, x: Tensor) -> Tensor | None:
        """What becomes of it; None where the module is called by itself, outside its block."""
        call = self.now.here().get("call")
        if call is None:
            return None
        restored: Tensor = call.restored(self.change(call.batched(x, self.batch_first), call), x, self.batch_first)
        return restored

    def change(self, x_BND: Tensor, call: Call) -> Tensor:
        """As the edit has it."""
        changed: Tensor = getattr(self.edit, self.place)(x_BND, call)
        return changed


class EditOutput(EditStream):
    """An edit of a module's first output, as the block adds it: times a number or a weight, where it multiplies it."""

    def __init__(
        self, edit: Edit, place: str, now: Volatile, batch_first: bool, block: nn.Module, times: float | str = 1.0
    ) -> None:
        super().__init__(edit, place, now, batch_first)
        self.block, self.times = block, times

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Called by torch after the module."""
        edited = self.edited(first_output(output))
        return None if edited is None else _with_first(output, edited)

    def change(self, x_BND: Tensor, call: Call) -> Tensor:
        """As the edit has it; bit-equal where it changes nothing."""
        if self.times == 1.0:
            return self.added(x_BND, call)
        times = multiplier(self.block, self.times)
        added_BND = x_BND * times
        return x_BND + (self.added(added_BND, call) - added_BND) / times

    def added(self, x_BND: Tensor, call: Call) -> Tensor:
        """What is to be added to the stream in place of `x_BND`."""
        return super().change(x_BND, call)


class EditOther(EditOutput):
    """The same of one of several further branches."""

    def __init__(self, edit: Edit, number: int, now: Volatile, batch_first: bool, block: nn.Module, tap: Tap) -> None:
        super().__init__(edit, "on_other", now, batch_first, block, tap.times)
        self.number = number

    def added(self, x_BND: Tensor, call: Call) -> Tensor:
        """What is to be added to the stream in place of `x_BND`."""
        return self.edit.on_other(x_BND, call, self.number)


class EditInput(EditStream):
    """An edit of what a module reads; what goes on beside the module stays as it is."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> Any:
        """Called by torch before the module."""
        edited = self.edited(args[0])
        return None if edited is None else (edited, *args[1:])


class AddToSum(EditInput):
    """Add what an edit returns to the sum of stream and branch, which the norm of a post-norm block reads."""

    def change(self, x_BND: Tensor, call: Call) -> Tensor:
        """The sum, and what is added to it."""
        return x_BND + super().change(x_BND, call)


class AddToBranch(EditOutput):
    """The same for attention where no module reads the sum: by way of the branch, so it has to come last there."""

    def added(self, x_BND: Tensor, call: Call) -> Tensor:
        """The branch, and what is added to its sum with the stream."""
        return x_BND + super().added(call.stream + x_BND, call)


class NoteMiddle(Hook):
    """Note what attention's norm in a post-norm block hands on, after all edits of it: the MLP is added to that."""

    def __init__(self, edit: Edit, now: Volatile, batch_first: bool) -> None:
        self.edit = edit
        self.now = now
        self.batch_first = batch_first

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> None:
        """Called by torch after the norm."""
        call = self.now.here().get("call")
        if call is not None:
            call.middle = call.batched(output, self.batch_first)


class EditValues(Hook):
    """Note the values of this call for edits of the heads and, where `edit` is one, let it change them."""

    def __init__(self, edit: Edit | None, now: Volatile, weights: ValueParts) -> None:
        self.edit = edit
        self.now = now
        self.weights = weights

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        """Called by torch after the values are made."""
        call = self.now.here().get("call")
        if call is None:
            return None
        values = self.weights.values_of(output)
        call.values = call.batched(values)
        if self.edit is None:
            return None
        call.values = self.edit.on_values(call.values, call)
        edited: Tensor = call.restored(call.values, values)
        if values.numel() == output.numel():
            return edited.reshape(output.shape)
        changed = output.clone()  # fused with queries and keys, which stay as they are
        self.weights.values_of(changed).copy_(edited)
        return changed


class EditHeads(Hook):
    """Let an edit change what the output projection reads."""

    def __init__(self, edit: Edit, now: Volatile, weights: ValueParts) -> None:
        self.edit = edit
        self.now = now
        self.heads = weights.heads

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> Any:
        """Called by torch before the heads are projected."""
        call = self.now.here().get("call")
        if call is None:
            return None
        heads = args[0].unflatten(-1, (self.heads.query, self.heads.dim))
        edited = self.edit.on_heads(call.batched(heads), call)
        return (call.restored(edited, heads).flatten(-2), *args[1:])


class FitCheckpoint(Hook):
    """Before a checkpoint is loaded into a block: give edits that it does not know what they need.

    What `undo` would put back is the model's own, and not the checkpoint's.
    """

    def __init__(self, index: int, depth: int, host: Host, path: str) -> None:
        self.index, self.depth, self.host, self.path = index, depth, host, path

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Called by torch before the block's part of a checkpoint is read."""
        from unsmooth.remedies.block import APPLIED, HOME, REPLACED, site_of

        if not any(key.startswith(prefix) for key in state):
            return  # a checkpoint of some other part of the model
        home = module.get_submodule(HOME)
        for key in [key for key in state if key.startswith(f"{prefix}{HOME}.{REPLACED}.")]:
            del state[key]
        state.setdefault(f"{prefix}{HOME}.{APPLIED}", home.get_buffer(APPLIED))
        for name, edit in home.named_children():
            own = f"{prefix}{HOME}.{name}."
            if not any(key.startswith(own) for key in state) and isinstance(edit, Edit):
                edit.adopt(state, own, prefix, site_of(self.host, module, self.path, self.index, self.depth))


def _with_first(output: Any, tensor: Tensor) -> Any:
    if isinstance(output, Tensor):
        return tensor
    if isinstance(output, tuple):
        return (tensor, *output[1:])
    raise expected("a module that returns a tensor or a tuple", type(output).__name__, "another model")
