"""What the O(nd) metrics share, computed in memory that is used again.

A dozen passes over a layer's tokens cost a CPU more in page faults than in arithmetic when each pass allocates room for
its result. Here the passes work in rooms that stay from layer to layer, a block of sequences at a time. What is left of
a layer are a few sums, of which only those are made that a metric reads; the sums of all layers lie side by side, so
that metrics are evaluated once and not once per layer: a call into torch costs more than the few numbers it works on.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from unsmooth.functional._tokens import Tokens, centre, euclidean_norm, inverse, weighted_sum

# Between these norms no square leaves the range of float32, of differences that are 1e-12 of a token neither.
_SHORT, _LONG = 2.0**-10, 2.0**40
# Numbers in a block. Smaller ones would stay in the cache, but then waking torch's threads costs more than it saves.
_BLOCK = 1 << 22
# Bytes of a shelf's slab, and how many numbers apart its tensors start at least.
_SLAB = 1 << 20
_ALIGNED = 64

Sums = dict[str, Tensor]
"""What is measured of tokens, named after the properties of `Tokens` that it fills in."""
_CENTRED = ("centred_energy_B", "centred_absolute_columns_BD", "centred_absolute_rows_BN")
SUMS = frozenset({"norms_BN", "unit_sum_BD", "mean_BD", "absolute_columns_BD", "absolute_rows_BN", *_CENTRED})
"""All that can be measured."""


class Workspace:
    """Room for blocks, used again and again; only without gradients, and by one `Tokens` at a time."""

    def __init__(self) -> None:
        self._room: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Room of this shape, holding whatever was left in it."""
        key, size = (name, device, dtype), prod(shape)
        room = self._room.get(key)
        if room is None or room.numel() < size:
            room = self._room[key] = _make_room(size, dtype, device)
        return room[:size].view(shape)


class Shelf:
    """Room for small tensors that are kept while a model goes on: taken off the heap, and given free all at once.

    On the heap each would sit where the model has just freed a large buffer, which then no longer fits, and the heap
    grows: 512 and 2,048 tokens cost a scan 10 % more memory that way. Tensors of other devices stay where they are.
    """

    def __init__(self) -> None:
        self._slabs: dict[torch.dtype, list[Tensor]] = {}
        self._used: dict[torch.dtype, int] = {}

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy of `tensor` that holds until `clear`."""
        if tensor.device.type != "cpu":
            return tensor
        dtype, size = tensor.dtype, tensor.numel()
        slabs, start = self._slabs.setdefault(dtype, []), self._used.get(dtype, 0)
        if not slabs or start + size > slabs[-1].numel():
            slabs.append(_make_room(max(size, _SLAB // dtype.itemsize), dtype, tensor.device))
            start = 0
        self._used[dtype] = start + -(-size // _ALIGNED) * _ALIGNED
        return slabs[-1][start : start + size].view(tensor.shape).copy_(tensor)

    def clear(self) -> None:
        """Give the room of all kept tensors to the next ones; only the first slab of each type stays."""
        for slabs in self._slabs.values():
            del slabs[1:]
        self._used.clear()


def _make_room(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory of its own: on the heap it would lie between the model's buffers for good, and the heap would grow."""
    if device.type != "cpu":
        return torch.empty(size, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize), dtype=dtype)


@dataclass(frozen=True)
class Block:
    """Some sequences of a `Tokens`: their vectors, which are not to be changed, and as much room to work in.

    `norms_BN` is zero at padding. `weight_BN` is 0 at padding and 1 elsewhere, None where the vectors at padding are
    zero already. `exact` says that matrix products keep all digits. The room lives in a workspace and is overwritten by
    the next block. Vectors are float64 where their lengths are beyond what float32 can square.
    """

    values_BND: Tensor
    room_BND: Tensor
    mask_BN: Tensor | None
    weight_BN: Tensor | None
    norms_BN: Tensor
    count_B: Tensor
    exact: bool

    def weighted_sum(self, weights_BN: Tensor, vectors_BND: Tensor) -> Tensor:
        """Σ_i w_i x_i (B, D) of these vectors or of some in the room, for weights that are zero at padding."""
        if self.exact:
            return torch.bmm(weights_BN.unsqueeze(1), vectors_BND).squeeze(1)
        return weighted_sum(vectors_BND, weights_BN, out=self.room_BND if vectors_BND is self.values_BND else None)

    def over_tokens(self, matrix_BND: Tensor) -> Tensor:
        """Σ_i m_i (B, D) over real tokens."""
        if self.weight_BN is None:
            return matrix_BND.sum(dim=1)
        return torch.bmm(self.weight_BN.unsqueeze(1), matrix_BND).squeeze(1)

    def shortest_token(self) -> Tensor:
        """The real token (B, D) of the smallest norm, and whatever is first where there is none."""
        known_BN = self.norms_BN if self.mask_BN is None else self.norms_BN.masked_fill(~self.mask_BN, torch.inf)
        index_B11 = known_BN.argmin(dim=1)[:, None, None]
        return self.values_BND.gather(1, index_B11.expand(-1, 1, self.values_BND.shape[2])).squeeze(1)

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
class Reading:
    """What a metric reads of tokens: which sums, and whether it needs the vectors beside them."""

    sums: frozenset[str] = SUMS
    vectors: bool = True


def reading_of(metric: Callable[[Tokens], Tensor]) -> Reading:
    """What a metric reads: seen by what it leaves computed in a `Tokens`, and by whether it can do without vectors.

    >>> from unsmooth.functional import mean_cosine
    >>> reading = reading_of(mean_cosine)
    >>> sorted(reading.sums), reading.vectors
    (['norms_BN', 'unit_sum_BD'], False)
    """
    tried = Tokens(torch.eye(3, 4).unsqueeze(0))
    metric(tried)
    sums = SUMS.intersection(vars(tried))
    known = {name: getattr(tried, name) for name in ("count_B", *sums)}
    light = light_tokens(known, tried.input_BND.shape, tried.dtype)
    try:
        vectors = metric(light).is_meta
    except Exception:  # each metric has its own way to stumble over vectors without content
        vectors = True
    return Reading(sums, vectors)


def light_tokens(sums: Sums, shape: Sequence[int], dtype: torch.dtype) -> Tokens:
    """Tokens of this shape with sums and without vectors: whatever asks for those fails."""
    light = Tokens(torch.empty(tuple(shape), dtype=dtype, device="meta"))
    vars(light).update(sums)
    return light


def blocks(tokens: Tokens, workspace: Workspace, *, waits: bool = True) -> Iterator[Block]:
    """Walk through the sequences of `tokens`.

    Args:
        tokens: What to measure.
        workspace: Where blocks have their room.
        waits: Whether a GPU may be waited for, to ask whether a block has to be measured in float64. If not, tokens
            shorter than 1e-19 count as zero there, and those beyond 1e18 give NaN.
    """
    x, mask, count = tokens.input_BND, tokens.mask_BN, tokens.count_B
    exact = _products_are_exact(x)
    # A GPU has an allocator of its own, and no use for pieces.
    step = x.shape[0] if x.device.type != "cpu" else max(_BLOCK // (x.shape[1] * x.shape[2]), 1)
    for start in range(0, max(x.shape[0], 1), max(step, 1)):
        rows = slice(start, start + step)
        real = None if mask is None else mask[rows]
        block = _block(x[rows], real, count[rows], exact, tokens.dtype, workspace)
        if (waits or x.device.type == "cpu") and _beyond_float32(block):
            block = _block(x[rows], real, count[rows], exact, torch.float64, workspace)
        yield block


def _beyond_float32(block: Block) -> bool:
    """Whether a token is so long or short, without being zero, that its square would lose digits in float32."""
    if block.values_BND.dtype == torch.float64 or block.values_BND.device.type == "mps" or not len(block.norms_BN):
        return False
    norms_BN = block.norms_BN if block.mask_BN is None else block.norms_BN.masked_fill(~block.mask_BN, 1.0)
    least, most = (float(norm) for norm in torch.aminmax(norms_BN))
    if least > _SHORT and most < _LONG:
        return False
    return bool(block.values_BND[(norms_BN < _SHORT) | (norms_BN > _LONG)].any())


def _block(
    x_BND: Tensor, mask_BN: Tensor | None, count_B: Tensor, exact: bool, dtype: torch.dtype, workspace: Workspace
) -> Block:
    room_BND = workspace.take("room", x_BND.shape, dtype, x_BND.device)
    if mask_BN is None and x_BND.dtype == dtype:
        return Block(x_BND, room_BND, None, None, euclidean_norm(x_BND), count_B, exact)
    if exact and mask_BN is not None and x_BND.dtype == dtype:
        norms = euclidean_norm(x_BND)
        # Without a copy weights keep padding out, unless its sums are not finite: zero times NaN is NaN.
        if bool((norms < _LONG).all()):
            weight = mask_BN.to(dtype)
            return Block(x_BND, room_BND, mask_BN, weight, norms * weight, count_B, exact)
    values = workspace.take("values", x_BND.shape, dtype, x_BND.device).copy_(x_BND)
    if mask_BN is not None:
        _zero_padding(values, mask_BN)
    return Block(values, room_BND, mask_BN, None, euclidean_norm(values), count_B, exact)


def _zero_padding(values_BND: Tensor, mask_BN: Tensor) -> None:
    if values_BND.device.type == "cpu":
        # Whole rows by index are several times faster than a choice for each element.
        values_BND.flatten(0, 1).index_fill_(0, (~mask_BN).flatten().nonzero().flatten(), 0.0)
    else:
        values_BND.masked_fill_(~mask_BN.unsqueeze(-1), 0.0)


def measure(block: Block, wanted: frozenset[str] = SUMS) -> Sums:
    """The wanted sums of one block, and what all of them begin with: norms and their inverses.

    The mean, rounded, would hide differences below 1e-7. It is taken of the differences to one token, which have no
    such error: the shortest token, so that the mean does not lose digits beside a massive one.
    """
    found = {"norms_BN": block.norms_BN, "inverse_norms_BN": inverse(block.norms_BN)}
    if "unit_sum_BD" in wanted:
        found["unit_sum_BD"] = block.weighted_sum(found["inverse_norms_BN"], block.values_BND)
    found |= _absolute_sums(block, block.values_BND, wanted, "absolute")
    if wanted.isdisjoint(("mean_BD", *_CENTRED)):
        return found
    shortest_BD = block.shortest_token()
    mask_BN = block.mask_BN if block.weight_BN is None else None  # weights keep padding out, whatever is there
    rest_BND = centre(block.values_BND, shortest_BD, mask_BN, out=block.room_BND)
    from_it_BD = block.over_tokens(rest_BND) / block.count_B.clamp_min(1.0).unsqueeze(-1)
    # Without a real token the shortest one is padding.
    found["mean_BD"] = (shortest_BD + from_it_BD) * block.count_B.clamp_max(1.0).unsqueeze(-1)
    if not wanted.isdisjoint(_CENTRED):
        rest_BND = centre(rest_BND, from_it_BD, mask_BN, out=block.room_BND)
        found["centred_energy_B"] = block.at_real(euclidean_norm(rest_BND)).square().sum(dim=1)
        found |= _absolute_sums(block, rest_BND, wanted, "centred_absolute")
    return found


def _absolute_sums(block: Block, matrix_BND: Tensor, wanted: frozenset[str], name: str) -> Sums:
    """Sums of |M| over tokens and over features; leaves |M| in the room."""
    columns, rows = f"{name}_columns_BD", f"{name}_rows_BN"
    if wanted.isdisjoint((columns, rows)):
        return {}
    magnitude_BND = torch.abs(matrix_BND, out=block.room_BND)
    found = {columns: block.over_tokens(magnitude_BND)}
    if rows in wanted:
        found[rows] = block.at_real(magnitude_BND.sum(dim=-1))
    return found


def joined(parts: Sequence[Sums]) -> Sums:
    """The sums of all sequences from those of their blocks."""
    return {name: one_after_another([part[name] for part in parts]) for name in parts[0]}


def one_after_another(tensors: Sequence[Tensor]) -> Tensor:
    """`torch.cat`, which copies one alone too."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
