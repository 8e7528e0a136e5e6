"""One call of a block, as the edits in it see it: who may see whom, what is real, what came before."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.models.look import in_batch, in_row
from unsmooth.remedies.memory import Memory

# What is added to the logits of hidden tokens is -inf, the lowest number of the dtype, or -10000 in older code.
LOWEST_SEEN = -1e3


class _Thread:
    """Stands for a thread, and is gone with it."""


_LOCAL = threading.local()
# Nobody may come or go while somebody looks at what all threads hold.
_LOCK = threading.Lock()
_Places = WeakKeyDictionary[_Thread, dict[str, Any]]


def _thread() -> _Thread:
    found: _Thread = _LOCAL.__dict__.setdefault("thread", _Thread())
    return found


def _by_thread() -> _Places:
    return WeakKeyDictionary()


class Volatile:
    """Holds tensors of the forward pass under way; comes out empty when a model is copied or saved.

    Threads that call one model at once do not meet here: each has what it began itself. Compiled code cannot ask which
    thread it runs in, and has what was begun last.
    """

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}
        self._threads = _by_thread()

    def begin(self) -> dict[str, Any]:
        """A place for what this thread holds from here on; what it held before is let go."""
        if torch.compiler.is_dynamo_compiling():
            self._threads = _by_thread()  # or what is not compiled would find what was before
            self.held.clear()
            return self.held
        place: dict[str, Any] = {}  # not by way of `held`, which another thread may have changed meanwhile
        with _LOCK:
            self._threads[_thread()] = self.held = place
        return place

    def here(self) -> dict[str, Any]:
        """What this thread holds or, where it began nothing, what was begun last."""
        return self.held if torch.compiler.is_dynamo_compiling() else self._threads.get(_thread(), self.held)

    def own(self) -> dict[str, Any]:
        """What this thread has begun; not in compiled code."""
        return self._threads.get(_thread(), {})

    def every(self) -> list[dict[str, Any]]:
        """What all threads hold; not in compiled code."""
        with _LOCK:
            return [*self._threads.values(), self.held]

    def end(self) -> None:
        """Let go of what this thread holds."""
        place = self.here()
        if not torch.compiler.is_dynamo_compiling():
            with _LOCK:
                self._threads.pop(_thread(), None)
        place.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.held, self._threads = {}, _by_thread()


@dataclass
class Call:
    """One call of a block.

    Args:
        stream: (batch, tokens, dim) what entered the block.
        causal: Whether a token sees only itself and those before it.
        real_BN: True for tokens that are not padding; None where all are real.
        starts_BN: True where a token is the first of its packed sequence; None where nothing is packed.
        memory: The block's place in the key/value cache; None where there is none.
        shared: What blocks hand each other within one pass of the stack.
        values: (batch, tokens, key/value heads, head dim), once they are made and where an edit asked for them.
        masked: Whether the block was handed a mask of any kind.
        middle: The stream between attention and MLP of a post-norm block, for edits of what the MLP's norm reads.
        lengths: Tokens of each sequence, where the block was handed several in one row, and told where each begins: of
            each image, or of each window where the block attends within those. Edits see them as a batch.
        places: Rows and columns of an image, where the block was handed (batch, rows, columns, dim).
    """

    stream: Tensor
    causal: bool
    real_BN: Tensor | None
    starts_BN: Tensor | None
    memory: Memory | None
    shared: dict[str, Any]
    values: Tensor | None = None
    masked: bool = False
    middle: Tensor | None = None
    lengths: tuple[int, ...] = ()
    places: tuple[int, ...] = ()

    def batched(self, x: Tensor, batch_first: bool = True) -> Tensor:
        """What a block has, (batch, tokens, ...) as edits see it."""
        if self.lengths:
            return in_batch(x, self.lengths)
        if self.places and x.shape[1:] == (*self.places, self.stream.shape[-1]):
            return x.flatten(1, 2)
        batch, tokens = self.stream.shape[:2]
        if x.ndim == 2:  # some blocks run their MLP on all tokens in one row
            x = torch.unflatten(x, 0, (batch, tokens) if batch_first else (tokens, batch))
        return x if batch_first else x.transpose(0, 1)

    def restored(self, x_BN: Tensor, like: Tensor, batch_first: bool = True) -> Tensor:
        """The same as the block has it."""
        if self.places and like.shape[1:] == (*self.places, self.stream.shape[-1]):
            if x_BN.shape[1] != like.shape[1] * like.shape[2]:
                raise expected("a token for each place of an image", f"{x_BN.shape[1]}", "a remedy that brings none")
            return x_BN.reshape(like.shape)
        if not self.lengths:
            x = x_BN if batch_first else x_BN.transpose(0, 1)
            return x.flatten(0, 1) if like.ndim == 2 else x
        if x_BN.shape[1] != max(self.lengths):
            what = "as many tokens as the block was handed in one row"
            raise expected(what, f"{x_BN.shape[1]} for one sequence", "a remedy that brings none")
        return in_row(x_BN, self.lengths, like)


def read_mask(mask: Any, batch: int, tokens: int, causal: bool) -> tuple[Tensor | None, Tensor | None]:
    """(real tokens, first tokens of packed sequences) of the newest `tokens`, from any mask a block is handed.

    A token sees itself unless it is padding, so the diagonal of a (batch, 1, queries, keys) mask says what is real,
    whatever windows it has. Below the diagonal it says whether a real token sees the one before it: where not, another
    sequence begins.

    >>> causal = torch.ones(3, 3).tril().bool()
    >>> read_mask((causal & torch.tensor([False, True, True]))[None, None], 1, 3, causal=True)[0]  # left padding
    tensor([[False,  True,  True]])
    >>> apart = torch.block_diag(torch.ones(2, 2), torch.ones(1, 1)).bool() & causal
    >>> read_mask(apart[None, None], 1, 3, causal=True)[1]  # two sequences in one row
    tensor([[False, False,  True]])
    """
    if mask is None:
        return None, None
    if not isinstance(mask, Tensor):
        raise expected("an attention mask as a tensor", type(mask).__name__, 'attn_implementation="sdpa" or "eager"')
    if mask.ndim == 2:
        return mask[:, -tokens:].bool(), None
    if mask.ndim != 4:
        raise expected("a 2-D or 4-D attention mask", f"shape {tuple(mask.shape)}", "(batch, tokens), 1 for real")
    seen = seen_by(mask)
    if seen.shape[-2] == 1 and tokens > 1:  # the same for every query, so it only says what is real
        return seen[:, 0, 0, -tokens:].expand(batch, tokens), None
    if seen.shape[-2] != tokens:
        what = f"a mask of the {tokens} tokens of the stream"
        raise expected(what, f"one of {seen.shape[-2]}", "another stack")
    offset = seen.shape[-1] - seen.shape[-2]
    real_BN = seen[:, 0].diagonal(offset, dim1=-2, dim2=-1).expand(batch, tokens)
    if not causal or tokens == 1:
        return real_BN, None
    sees_previous = seen[:, 0].diagonal(offset - 1, dim1=-2, dim2=-1).expand(batch, -1)
    # Along rows of queries 1..; where the cache holds earlier tokens the diagonal has one entry more, for query 0.
    sees_previous = sees_previous[:, -(tokens - 1) :]
    begins = ~sees_previous & real_BN[:, :-1] & real_BN[:, 1:]
    return real_BN, torch.nn.functional.pad(begins, (1, 0))


def seen_by(mask: Tensor) -> Tensor:
    """Where a query sees a key: by what is added to the logits, or else as it says (DeBERTa has numbers 0 and 1)."""
    return mask > LOWEST_SEEN if mask.is_floating_point() else mask.bool()


def are_packed(seen: Tensor) -> bool:
    """Whether rows hold several sequences that see nothing of one another. Waits for the device.

    Args:
        seen: Where a query sees a key, (..., tokens, tokens), or more keys than queries, the newest last.

    Example:
        >>> are_packed(torch.block_diag(torch.ones(2, 2), torch.ones(1, 1)).bool())
        True
        >>> near = torch.ones(4, 4).tril(1).triu(-1).bool()  # a window
        >>> padded = torch.tensor([True, False, True, True]).expand(4, 4)
        >>> are_packed(near), are_packed(padded)
        (False, False)
    """
    seen = seen[..., -seen.shape[-2] :]
    real = seen.diagonal(dim1=-2, dim2=-1)
    begins = ~seen.diagonal(-1, dim1=-2, dim2=-1) & real[..., :-1] & real[..., 1:]
    if not bool(begins.any()):
        return False
    sequence = torch.nn.functional.pad(begins, (1, 0)).cumsum(dim=-1)
    others = (sequence.unsqueeze(-1) != sequence.unsqueeze(-2)) & real.unsqueeze(-1) & real.unsqueeze(-2)
    return not bool((seen & others).any())


def are_one_way(seen: Tensor) -> bool:
    """Whether rows have a place past which tokens see back and nobody sees them from before it, or the other way round.

    So it is where the future is hidden, from all tokens or from those of a prefix. Waits for the device.

    Args:
        seen: As in `are_packed`.

    Example:
        >>> causal = torch.ones(4, 4).tril().bool()
        >>> are_one_way(causal), are_one_way(causal | (torch.arange(4) < 2))
        (True, True)
        >>> near = torch.ones(4, 4).tril(1).triu(-1).bool()  # a window
        >>> padded = torch.tensor([True, False, True, True]).expand(4, 4)
        >>> are_one_way(near), are_one_way(padded)
        (False, False)
    """
    seen = seen[..., -seen.shape[-2] :]
    real = seen.diagonal(dim1=-2, dim2=-1)
    each_other = seen.diagonal(1, dim1=-2, dim2=-1) & seen.diagonal(-1, dim1=-2, dim2=-1)
    if bool((each_other | ~(real[..., :-1] & real[..., 1:])).all()):
        return False  # as neighbours do almost everywhere; what follows is as large as the mask, and larger
    seen = seen & real.unsqueeze(-1) & real.unsqueeze(-2)
    return not torch.equal(_looked_past(seen), _looked_past(seen.mT))


def _looked_past(seen: Tensor) -> Tensor:
    """For every place but the first, whether a token before it sees one that is there or after it."""
    place_N = torch.arange(seen.shape[-1], device=seen.device)
    farthest = torch.where(seen, place_N, -1).amax(dim=-1).cummax(dim=-1).values
    return farthest[..., :-1] >= place_N[1:]


def packed_starts(told: Mapping[str, Any], tokens: int) -> Tensor | None:
    """The first tokens of packed sequences in one row, from what kernels without a mask are told.

    >>> packed_starts({"position_ids": torch.tensor([[0, 1, 2, 0, 1]])}, 5)
    tensor([[False, False, False,  True, False]])
    >>> packed_starts({"cu_seq_lens_q": torch.tensor([0, 3, 5])}, 5)
    tensor([[False, False, False,  True, False]])
    """
    lengths, positions = told.get("cu_seq_lens_q"), told.get("position_ids")
    if lengths is not None:
        return torch.isin(torch.arange(tokens, device=lengths.device), lengths[1:-1])[None]
    if positions is None or positions.shape != (1, tokens):
        return None
    return torch.nn.functional.pad(positions[:, 1:] != positions[:, :-1] + 1, (1, 0))
