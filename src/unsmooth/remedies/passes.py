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


def begin_pass(shared: Volatile) -> None:
    """Forget the last pass."""
    shared.held.clear()
    if not torch.compiler.is_compiling():
        shared.held["pass"] = (object(), torch._C._current_graph_task_id())


def shared_in(stream: Tensor, shared: Volatile) -> dict[str, Any]:
    """What the blocks of the pass share that `stream` belongs to."""
    if torch.compiler.is_compiling() or "pass" not in shared.held:
        return shared.held
    mark, task = shared.held["pass"]
    if torch._C._current_graph_task_id() == task:
        if torch.is_grad_enabled():
            setattr(stream, _MARK, mark)
        return shared.held
    # In a backward pass that the model's pass was not begun in: the block is running again.
    return shared.held if getattr(stream, _MARK, None) is mark else _Gone()


def _not_there() -> UnsmoothError:
    return expected(
        "gradient checkpointing with use_reentrant=False, and the backward pass before the next forward pass, for a "
        "remedy in which blocks hand each other values",
        "a block that runs again without them",
        "training without gradient checkpointing",
    )
