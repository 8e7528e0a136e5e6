"""What the O(nd) metrics share, computed in memory that is used again.

A dozen passes over a layer's tokens cost a CPU more in page faults than in arithmetic when each pass allocates room for
its result. Here the passes work in rooms that stay from layer to layer, a block of sequences at a time.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from unsmooth.functional._tokens import Tokens, absolute_sums, centre, euclidean_norm, inverse, weighted_sum

# Numbers in a block. Smaller ones would stay in the cache, but then waking torch's threads costs more than it saves.
_BLOCK = 1 << 22
# Bytes of a shelf's slab, and where its tensors may start.
_SLAB = 1 << 20
_ALIGNED = 64


class Workspace:
    """Room for blocks, used again and again; only without gradients, and by one `Tokens` at a time."""

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
    """Some sequences of a `Tokens`: their vectors, which are not to be changed, and as much room to work in.

    `norms_BN` is zero at padding. `weight_BN` is 0 at padding and 1 elsewhere, None where the vectors at padding are
    zero already. The room lives in a workspace and is overwritten by the next block.
    """

    values_BND: Tensor
    room_BND: Tensor
    mask_BN: Tensor | None
    weight_BN: Tensor | None
    norms_BN: Tensor
    count_B: Tensor

    def weighted_sums(self, *weights_BN: Tensor | None) -> tuple[Tensor, ...]:
        """Σ_i w_i x_i (B, D) for each of the weights, which are zero at padding; None weighs all real tokens alike."""
        values = self.values_BND
        if _products_are_exact(values):
            alike_BN = values.new_ones(values.shape[:2]) if self.weight_BN is None else self.weight_BN
            rows_BKN = torch.stack([alike_BN if weights is None else weights for weights in weights_BN], dim=1)
            return torch.bmm(rows_BKN, values).unbind(dim=1)
        return tuple(
            values.sum(dim=1) if weights is None else weighted_sum(values, weights, out=self.room_BND)
            for weights in weights_BN
        )

    def absolute_sums(self, matrix_BND: Tensor) -> tuple[Tensor, Tensor]:
        """Column sums (B, D) and row sums (B, N) of |M| over real tokens; leaves |M| in the room."""
        if self.weight_BN is None:
            return absolute_sums(matrix_BND, out=self.room_BND)
        magnitude = torch.abs(matrix_BND, out=self.room_BND)
        columns = torch.bmm(self.weight_BN.unsqueeze(1), magnitude).squeeze(1)
        return columns, self.at_real(magnitude.sum(dim=-1))

    def at_real(self, numbers_BN: Tensor) -> Tensor:
        """The numbers of real tokens, zero at padding."""
        return numbers_BN if self.weight_BN is None else numbers_BN * self.weight_BN


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
    """What is measured of a block, named after the properties of `Tokens` that it fills in.

    What takes a second look at the vectors, less their mean, is None where no metric reads it.
    """

    norms_BN: Tensor
    mean_BD: Tensor
    unit_sum_BD: Tensor
    absolute_sums: tuple[Tensor, Tensor]
    centred_energy_B: Tensor | None = None
    centred_absolute_sums: tuple[Tensor, Tensor] | None = None


# The properties of `Tokens` that are filled in, and those among them that a second look is for.
_FILLED = tuple(field.name for field in fields(Sums))
_CENTRED = frozenset({"centred_energy_B", "centred_absolute_sums"})


def reads_centred(metric: Callable[[Tokens], Tensor]) -> bool:
    """Whether a metric reads sums of (I − Π)X: seen by what it leaves computed in a `Tokens`.

    >>> from unsmooth.functional import mean_cosine, token_similarity
    >>> reads_centred(mean_cosine), reads_centred(token_similarity)
    (False, True)
    """
    tried = Tokens(torch.eye(3, 4).unsqueeze(0))
    metric(tried)
    return not _CENTRED.isdisjoint(vars(tried))


def blocks(tokens: Tokens, workspace: Workspace) -> Iterator[Block]:
    """Walk through the sequences of `tokens`."""
    x, mask = tokens.input_BND, tokens.mask_BN
    # A GPU has an allocator of its own, and no use for pieces.
    step = x.shape[0] if x.device.type != "cpu" else max(_BLOCK // (x.shape[1] * x.shape[2]), 1)
    for start in range(0, x.shape[0], step):
        rows = slice(start, start + step)
        real = None if mask is None else mask[rows]
        count = tokens.count_B[rows]
        room = workspace.take("room", x[rows], tokens.dtype)
        yield _as_they_are(x[rows], real, count, room, tokens.dtype) or _copied(x[rows], real, count, room, workspace)


def _as_they_are(
    x_BND: Tensor, mask_BN: Tensor | None, count_B: Tensor, room_BND: Tensor, dtype: torch.dtype
) -> Block | None:
    """A block without a copy, for which weights keep padding out; None where that would not do.

    Zero times NaN is NaN: padding must be finite. Weighted sums must be exact as matrix products.
    """
    if x_BND.dtype != dtype or not _products_are_exact(x_BND):
        return None
    norms = euclidean_norm(x_BND)
    if mask_BN is None:
        return Block(x_BND, room_BND, None, None, norms, count_B)
    if not bool(norms.isfinite().all()):
        return None
    weight = mask_BN.to(dtype)
    return Block(x_BND, room_BND, mask_BN, weight, norms * weight, count_B)


def _copied(x_BND: Tensor, mask_BN: Tensor | None, count_B: Tensor, room_BND: Tensor, workspace: Workspace) -> Block:
    values = workspace.take("values", x_BND, room_BND.dtype).copy_(x_BND)
    if mask_BN is not None:
        _zero_padding(values, mask_BN)
    return Block(values, room_BND, mask_BN, None, euclidean_norm(values), count_B)


def _zero_padding(values_BND: Tensor, mask_BN: Tensor) -> None:
    if values_BND.device.type == "cpu":
        # Whole rows by index are several times faster than a choice for each element.
        values_BND.flatten(0, 1).index_fill_(0, (~mask_BN).flatten().nonzero().flatten(), 0.0)
    else:
        values_BND.masked_fill_(~mask_BN.unsqueeze(-1), 0.0)


def measure(block: Block, centred: bool = True) -> Sums:
    """The shared sums of one block, with or without those of (I − Π)X."""
    values, norms = block.values_BND, block.norms_BN
    unit_sum, total = block.weighted_sums(inverse(norms), None)
    mean = total / block.count_B.clamp_min(1.0).unsqueeze(-1)
    sums = Sums(norms, mean, unit_sum, block.absolute_sums(values))
    if not centred:
        return sums
    centred_BND = centre(values, mean, block.mask_BN, out=block.room_BND)
    spread = block.at_real(euclidean_norm(centred_BND)).square().sum(dim=1)
    return replace(sums, centred_energy_B=spread, centred_absolute_sums=block.absolute_sums(centred_BND))


def fill_in(tokens: Tokens, sums: Sequence[Sums]) -> None:
    """Set the properties of `tokens` from the sums of its blocks; each would compute the same by itself."""
    for name in (name for name in _FILLED if getattr(sums[0], name) is not None):
        setattr(tokens, name, _join([getattr(part, name) for part in sums]))


def _join(values: Sequence[Tensor | tuple[Tensor, ...]]) -> Tensor | tuple[Tensor, ...]:
    """Concatenate tensors, or the first and second ones of pairs."""
    if isinstance(values[0], Tensor):
        return torch.cat(list(values)) if len(values) > 1 else values[0]  # type: ignore[arg-type]
    return tuple(torch.cat(pieces) for pieces in zip(*values, strict=True))


def _filled(tokens: Tokens) -> list[str]:
    return [name for name in _FILLED if name in vars(tokens)]


def shared_sums(tokens: Tokens, shelf: Shelf) -> Tokens:
    """What was measured of `tokens`, on a shelf and without the vectors: whatever asks for those fails."""
    light = Tokens(tokens.input_BND.to("meta"))
    for name in ("count_B", *_filled(tokens)):
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
    for name in ("count_B", *_filled(parts[0])):
        setattr(joined, name, _join([there(getattr(part, name)) for part in parts]))
    return joined
