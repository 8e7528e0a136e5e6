"""What the blocks of one pass hand each other, also when a block runs again in the backward pass.

With gradient checkpointing a block is run a second time, when its gradient is due. What an earlier block had handed it
is then still there, unless another pass of the model has come in between: then it must not be taken for the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError, expected
from unsmooth.remedies.call import Volatile

# On the tensor that enters a block: which pass it belongs to. An empty object, so that it keeps nothing alive.
_MARK = "_unsmooth_pass"


class _Gone(dict[str, Any]):
    """In place of what is no longer there, for those who ask for it."""

    def __getitem__(self, key: str) -> Any:
        raise _not_there()

    def get(self, key: str, default: Any = None) -> Any:
        raise _not_there()

    def setdefault(self, key: str, default: Any = None) -> Any:
        raise _not_there()

    def __contains__(self, key: object) -> bool:
        raise _not_there()


def begin_pass(shared: Volatile, by_stack: bool = True) -> None:
    """Forget this thread's last pass.

    Args:
        shared: Of the stack.
        by_stack: Whether the module that runs the stack begins it, and ends it. There are ways past that module:
            timm's ``forward_intermediates`` goes over the blocks itself, and so does its checkpointing.
    """
    held = shared.begin()
    if not torch.compiler.is_dynamo_compiling():
        held["pass"] = (object(), torch._C._current_graph_task_id())
        held["by_stack"] = by_stack


def end_pass(shared: Volatile) -> None:
    """Let go of what blocks shared, unless they may run again in the backward pass."""
    # Compiled, what is left would be an output more, and a reason to compile again.
    if not torch.is_grad_enabled() or torch.compiler.is_dynamo_compiling():
        shared.end()
        return
    held = shared.here()
    for key in ("mask", "packed"):  # what masks were found to say
        held.pop(key, None)
    held["by_stack"] = False


def goes_past_the_stack(shared: Volatile) -> bool:
    """Whether a block is called, not again in a backward pass, while the module that runs the stack is not."""
    if torch.compiler.is_dynamo_compiling() or torch._C._current_graph_task_id() != -1:
        return False
    return not shared.own().get("by_stack", False)


def end_past_the_stack(shared: Volatile) -> None:
    """After the last block: the same for a pass that no module ends, where nothing of it can be needed again."""
    if (
        not torch.compiler.is_dynamo_compiling()
        and not torch.is_grad_enabled()
        and shared.own().get("by_stack") is False
    ):
        shared.end()


def shared_in(stream: Tensor, shared: Volatile) -> dict[str, Any]:
    """What the blocks of the pass share that `stream` belongs to."""
    held = shared.here()
    if torch.compiler.is_dynamo_compiling() or "pass" not in held:
        return held
    mark, task = held["pass"]
    if torch._C._current_graph_task_id() == task:
        if torch.is_grad_enabled():
            setattr(stream, _MARK, mark)
        return held
    # In a backward pass that the model's pass was not begun in: the block is running again, on a GPU in a thread of
    # torch's own.
    wanted = getattr(stream, _MARK, None)
    found = (one for one in shared.every() if wanted is not None and one.get("pass", (None,))[0] is wanted)
    return next(found, _Gone())


def _not_there() -> UnsmoothError:
    return expected(
        "gradient checkpointing with use_reentrant=False, and the backward pass before the next forward pass, for a "
        "remedy in which blocks hand each other values",
        "a block that runs again without them",
        "training without gradient checkpointing",
    )
