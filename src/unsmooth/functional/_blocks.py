"""What the O(nd) metrics share, computed in memory that is used again.

A dozen passes over a layer's tokens cost a CPU more in page faults than in arithmetic when each pass allocates room for
its result. Here the passes work in two rooms that stay from layer to layer, a block of sequences at a time.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from unsmooth.functional._tokens import Tokens, absolute_sums, centre, energy, euclidean_norm, inverse, weighted_sum

# Numbers in a block. Smaller ones would stay in the cache, but then waking torch's threads costs more than it saves.
_BLOCK = 1 << 22
# Bytes of a shelf's slab, and where its tensors may start.
_SLAB = 1 << 20
_ALIGNED = 64


class Workspace:
    """Room for two blocks, used again and again; only without gradients, and by one `Tokens` at a time."""

    def __init__(self) -> None:
        self._room: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}

    def take(self, name: str, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Room of the shape and device of `like`, holding whatever was left in it."""
        key, size = (name, like.device, dtype), like.numel()
        room = self._room.get(key)
        if room is None or room.numel() < size:
            room = self._room[key] = _make_room(size, dtype, like.device)
        return room[:size].view(like.shape)


class Shelf:
    """Room for small tensors that are kept while a model goes on: taken off the heap, and given free all at once.

    On the heap each would sit where the model has just freed a large buffer, which then no longer fits, and the heap
    grows: 512 and 2,048 tokens cost a scan 10 % more memory that way. Tensors of other devices stay where they are.
    """

    def __init__(self) -> None:
        self._slabs: list[Tensor] = []
        self._used = 0

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy of `tensor` that holds until `clear`."""
        if tensor.device.type != "cpu":
            return tensor
        size = tensor.numel() * tensor.element_size()
        if not self._slabs or self._used + size > self._slabs[-1].numel():
            self._slabs.append(_make_room(max(size, _SLAB), torch.uint8, tensor.device))
            self._used = 0
        part = self._slabs[-1][self._used : self._used + size]
        self._used += -(-size // _ALIGNED) * _ALIGNED
        return part.view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def clear(self) -> None:
        """Give the room of all kept tensors to the next ones; only the first slab stays."""
        del self._slabs[1:]
        self._used = 0


def _make_room(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory of its own: on the heap it would lie between the model's buffers for good, and the heap would grow."""
    if device.type != "cpu":
        return torch.empty(size, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize), dtype=dtype)


@dataclass(frozen=True)
class Block:
    """Some sequences of a `Tokens`: their vectors with zeros at padding, and as much room again.

    Both live in a workspace: they may be changed, and are overwritten by the next block.
    """

    values_BND: Tensor
    room_BND: Tensor
    mask_BN: Tensor | None
    count_B: Tensor

    def weighted_sums(self, *weights_BN: Tensor | None) -> tuple[Tensor, ...]:
        """Σ_i w_i x_i (B, D) for each of the weights; None weighs all tokens alike."""
        values = self.values_BND
        if _products_are_exact(values):
            ones_BN = values.new_ones(values.shape[:2])
            rows_BKN = torch.stack([ones_BN if weights is None else weights for weights in weights_BN], dim=1)
            return torch.bmm(rows_BKN, values).unbind(dim=1)
        return tuple(
            values.sum(dim=1) if weights is None else weighted_sum(values, weights, out=self.room_BND)
            for weights in weights_BN
        )


def _products_are_exact(values: Tensor) -> bool:
    """Whether a matrix product, which is fastest, keeps float32: autocast, TF32 and a lower precision would not."""
    if values.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set through torch's newer switches, which this question may not be mixed with
        return False


@dataclass(frozen=True)
class Sums:
    """What is measured of a block, named after the properties of `Tokens` that it fills in."""

    norms_BN: Tensor
    mean_BD: Tensor
    unit_sum_BD: Tensor
    centred_energy_B: Tensor
    absolute_sums: tuple[Tensor, Tensor]
    centred_absolute_sums: tuple[Tensor, Tensor]


# The properties of `Tokens` that are filled in.
_FILLED = tuple(field.name for field in fields(Sums))


def blocks(tokens: Tokens, workspace: Workspace) -> Iterator[Block]:
    """Walk through the sequences of `tokens`."""
    x, mask = tokens.input_BND, tokens.mask_BN
    # A GPU has an allocator of its own, and no use for pieces.
    step = x.shape[0] if x.device.type != "cpu" else max(_BLOCK // (x.shape[1] * x.shape[2]), 1)
    for start in range(0, x.shape[0], step):
        rows = slice(start, start + step)
        values = workspace.take("values", x[rows], tokens.dtype).copy_(x[rows])
        real = None if mask is None else mask[rows]
        if real is not None:
            _zero_padding(values, real)
        yield Block(values, workspace.take("room", x[rows], tokens.dtype), real, tokens.count_B[rows])


def _zero_padding(values_BND: Tensor, mask_BN: Tensor) -> None:
    if values_BND.device.type == "cpu":
        # Whole rows by index are several times faster than a choice for each element.
        values_BND.flatten(0, 1).index_fill_(0, (~mask_BN).flatten().nonzero().flatten(), 0.0)
    else:
        values_BND.masked_fill_(~mask_BN.unsqueeze(-1), 0.0)


def measure(block: Block) -> Sums:
    """The shared sums of one block; leaves its vectors as they are."""
    values, room = block.values_BND, block.room_BND
    norms = euclidean_norm(values)
    unit_sum, total = block.weighted_sums(inverse(norms), None)
    mean = total / block.count_B.clamp_min(1.0).unsqueeze(-1)
    plain = absolute_sums(values, out=room)
    centred = centre(values, mean, block.mask_BN, out=room)
    spread = energy(centred)
    return Sums(norms, mean, unit_sum, spread, plain, absolute_sums(centred, out=centred))


def fill_in(tokens: Tokens, sums: Sequence[Sums]) -> None:
    """Set the properties of `tokens` from the sums of its blocks; each would compute the same by itself."""
    for name in _FILLED:
        setattr(tokens, name, _join([getattr(part, name) for part in sums]))


def _join(values: Sequence[Tensor | tuple[Tensor, ...]]) -> Tensor | tuple[Tensor, ...]:
    """Concatenate tensors, or the first and second ones of pairs."""
    if isinstance(values[0], Tensor):
        return torch.cat(list(values)) if len(values) > 1 else values[0]  # type: ignore[arg-type]
    return tuple(torch.cat(pieces) for pieces in zip(*values, strict=True))


def shared_sums(tokens: Tokens, shelf: Shelf) -> Tokens:
    """What was measured of `tokens`, on a shelf and without the vectors: whatever asks for those fails."""
    light = Tokens(tokens.input_BND.to("meta"))
    for name in ("count_B", *_FILLED):
        value = getattr(tokens, name)
        setattr(light, name, shelf.keep(value) if isinstance(value, Tensor) else tuple(map(shelf.keep, value)))
    return light


def join_sums(parts: Sequence[Tokens], device: torch.device) -> Tokens:
    """The shared sums of several layers as if they were one batch.

    Metrics that read nothing else are then evaluated once instead of once per layer: a call into torch costs more than
    the few numbers it works on.
    """

    def there(value: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        return value.to(device) if isinstance(value, Tensor) else tuple(item.to(device) for item in value)

    first = parts[0].input_BND
    joined = Tokens(first.new_empty((len(parts) * first.shape[0], *first.shape[1:])))
    for name in ("count_B", *_FILLED):
        setattr(joined, name, _join([there(getattr(part, name)) for part in parts]))
    return joined
