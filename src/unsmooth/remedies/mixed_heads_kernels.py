"""The three GPU kernels of `mixed_heads`: forward, gradients by query, gradients by key.

Each program has some rows of one group of heads and goes over the other side block by block, so any number of tokens
fits. The maps of a group are in registers together, where mixing them is a few multiplications, and none is ever
written. As maps are mixed after the softmax, its sums must be known first: the first two kernels go over keys twice,
unless a group is one head, where what each map gives can be mixed in their place, and is kept for the gradients.
Sums are in float32. Imported only where there is a GPU, since Triton comes with its torch.

A group has G maps and H heads: all heads of a sequence with a map each, or one head whose parts each make a map. Parts
are kept as wide as the head, with zeros between, so that they are read as they lie. Tiles are (queries, keys), those of
the last kernel (keys, queries).
"""

# Functions of Triton have no types.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from unsmooth.remedies import tile_kernels
from unsmooth.remedies.mixed_heads import room_apart
from unsmooth.remedies.tile_kernels import (
    add_attention,
    add_exponentials,
    add_products,
    add_row_sums,
    add_where_seen,
    divided,
    filled_rows,
    for_parts,
    in_floats,
    in_parts,
    load_numbers,
    load_rows,
    load_tiles,
    logarithms,
    mixed,
    mixed_back,
    of_parts,
    products,
    scaled,
    seen_and_added,
    softmax,
    softmax_back,
    store_rows,
    store_sums,
    store_tiles,
    where_seen,
    zero_tiles,
)
from unsmooth.remedies.token_kernels import Tiles, with_rows
from unsmooth.remedies.triton_here import on_its_device

_CAUSAL = tl.constexpr(tile_kernels.CAUSAL)


@triton.jit
def _of_group(starts, steps, batch, group, COUNT: tl.constexpr):
    """Where a group of heads begins in each; steps are from one sequence, group, head and row to the next."""
    found = ()
    for one in tl.static_range(COUNT):
        found += (starts[one] + batch * steps[one][0] + group * steps[one][1],)
    return found


@triton.jit
def _mixing(before, after, bias, G: tl.constexpr, H: tl.constexpr, BEFORE: tl.constexpr, BIAS: tl.constexpr):
    """A group's numbers: over logits, over maps, to all that is seen."""
    over_logits = load_numbers(before, G * G) if BEFORE else ()
    to_seen = load_numbers(bias, H) if BIAS else ()
    return over_logits, load_numbers(after, H * G), to_seen


@triton.jit
def _logits(left, right, scale, added, pre, G: tl.constexpr, BEFORE: tl.constexpr, PRECISION: tl.constexpr):
    """Those that each head has of its own, and as they are mixed."""
    own = scaled(products(left, right, G, PRECISION), scale, added, G)
    return own, mixed(own, pre, G, G) if BEFORE else own


@triton.jit
def _forward_kernel(
    q, k, v, out, lse, apart, before, after, bias, mask, q_at, k_at, v_at, out_at, apart_at, mask_at,
    queries, keys, groups, by_group, scale,
    G: tl.constexpr, H: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,
    BEFORE: tl.constexpr, BIAS: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    batch, group = program // groups, program % groups
    q, k, v, out = _of_group((q, k, v, out), (q_at, k_at, v_at, out_at), batch, group, 4)
    pre, post, constant = _mixing(before, after + group * by_group, bias, G, H, BEFORE, BIAS)

    query = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    q_tiles = in_parts(load_tiles(q, q_at, query, queries, H, WIDTH, WIDE), PARTS, WIDE)
    stop = tl.minimum(keys, (tl.program_id(1) + 1) * QUERIES) if KIND == _CAUSAL else keys
    tops, totals = filled_rows(float("-inf"), QUERIES, G), filled_rows(0.0, QUERIES, G)
    if PARTS > 1:
        # Maps of one head: what each gives is mixed, and once over the keys is enough.
        sums = zero_tiles(QUERIES, WIDE, G)
        for start in range(0, stop, KEYS):
            key = start + tl.arange(0, KEYS)
            k_tiles = for_parts(load_tiles(k, k_at, key, keys, H, WIDTH, WIDE), PARTS)
            v_tiles = load_tiles(v, v_at, key, keys, H, WIDTH, WIDE)
            seen, added = seen_and_added(mask, mask_at, batch, query[:, None], key[None, :], queries, keys, KIND)
            logits = _logits(q_tiles, k_tiles, scale, added, pre, G, BEFORE, PRECISION)[1]
            tops, totals, sums = add_attention(tops, totals, sums, logits, seen, v_tiles, G, PRECISION)
        store_rows(lse + program * G * queries, query, queries, logarithms(tops, totals, G), G)
        each = divided(sums, totals, G)
        apart += batch * apart_at[0] + group * apart_at[1]
        store_tiles(apart, apart_at, query, queries, each, 1.0, G, WIDTH, WIDE)
        store_tiles(out, out_at, query, queries, mixed(each, post, H, G), 1.0, H, WIDTH, WIDE)
    else:
        for start in range(0, stop, KEYS):
            key = start + tl.arange(0, KEYS)
            k_tiles = load_tiles(k, k_at, key, keys, H, WIDTH, WIDE)
            seen, added = seen_and_added(mask, mask_at, batch, query[:, None], key[None, :], queries, keys, KIND)
            logits = _logits(q_tiles, k_tiles, scale, added, pre, G, BEFORE, PRECISION)[1]
            tops, totals = add_exponentials(tops, totals, logits, seen, G)
        logarithm = logarithms(tops, totals, G)
        store_rows(lse + program * G * queries, query, queries, logarithm, G)

        heads = zero_tiles(QUERIES, WIDE, H)
        for start in range(0, stop, KEYS):
            key = start + tl.arange(0, KEYS)
            k_tiles = load_tiles(k, k_at, key, keys, H, WIDTH, WIDE)
            v_tiles = load_tiles(v, v_at, key, keys, H, WIDTH, WIDE)
            seen, added = seen_and_added(mask, mask_at, batch, query[:, None], key[None, :], queries, keys, KIND)
            logits = _logits(q_tiles, k_tiles, scale, added, pre, G, BEFORE, PRECISION)[1]
            maps = mixed(softmax(logits, logarithm, seen, 1, G), post, H, G)
            if BIAS:
                maps = add_where_seen(maps, constant, seen, H)
            heads = add_products(heads, maps, v_tiles, H, PRECISION)
        store_tiles(out, out_at, query, queries, heads, 1.0, H, WIDTH, WIDE)


@triton.jit
def _query_kernel(
    q, k, v, grad, lse, apart, of_sums, of_q, of_weights, before, after, mask,
    q_at, k_at, v_at, grad_at, apart_at, of_q_at, mask_at, queries, keys, groups, by_group, scale,
    G: tl.constexpr, H: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,
    BEFORE: tl.constexpr, BIAS: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    batch, group = program // groups, program % groups
    q, k, v, grad, of_q = _of_group((q, k, v, grad, of_q), (q_at, k_at, v_at, grad_at, of_q_at), batch, group, 5)
    pre, post, _ = _mixing(before, after + group * by_group, None, G, H, BEFORE, False)

    query = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    q_tiles = in_parts(load_tiles(q, q_at, query, queries, H, WIDTH, WIDE), PARTS, WIDE)
    grad_tiles = load_tiles(grad, grad_at, query, queries, H, WIDTH, WIDE)
    logarithm = load_rows(lse + program * G * queries, query, queries, float("inf"), G)
    stop = tl.minimum(keys, (tl.program_id(1) + 1) * QUERIES) if KIND == _CAUSAL else keys
    of_post, of_bias = filled_rows(0.0, QUERIES, H * G), filled_rows(0.0, QUERIES, H)
    if PARTS > 1:
        # What a map gave is known, and its sum with the gradient is that over keys of the map times its gradient.
        apart += batch * apart_at[0] + group * apart_at[1]
        each = in_floats(load_tiles(apart, apart_at, query, queries, G, WIDTH, WIDE), G)
        of_post = add_row_sums(of_post, in_floats(grad_tiles, H), each, H, G)
    else:
        ones = (tl.full([QUERIES, KEYS], 1.0, tl.float32),)
        for start in range(0, stop, KEYS):
            key = start + tl.arange(0, KEYS)
            k_tiles = load_tiles(k, k_at, key, keys, H, WIDTH, WIDE)
            v_tiles = load_tiles(v, v_at, key, keys, H, WIDTH, WIDE)
            seen, added = seen_and_added(mask, mask_at, batch, query[:, None], key[None, :], queries, keys, KIND)
            logits = _logits(q_tiles, k_tiles, scale, added, pre, G, BEFORE, PRECISION)[1]
            of_mixed = where_seen(seen, products(grad_tiles, v_tiles, H, PRECISION), H)
            of_post = add_row_sums(of_post, of_mixed, softmax(logits, logarithm, seen, 1, G), H, G)
            if BIAS:
                of_bias = add_row_sums(of_bias, of_mixed, ones, H, 1)

    # By map, the sum over keys of the map times its gradient.
    summed = ()
    for one in tl.static_range(G):
        total = post[one] * of_post[one]
        for head in tl.static_range(1, H):
            total += post[head * G + one] * of_post[head * G + one]
        summed += (total,)
    store_rows(of_sums + program * G * queries, query, queries, summed, G)

    rows, of_pre = zero_tiles(QUERIES, WIDE, G), filled_rows(0.0, QUERIES, G * G)
    for start in range(0, stop, KEYS):
        key = start + tl.arange(0, KEYS)
        k_tiles = for_parts(load_tiles(k, k_at, key, keys, H, WIDTH, WIDE), PARTS)
        v_tiles = load_tiles(v, v_at, key, keys, H, WIDTH, WIDE)
        seen, added = seen_and_added(mask, mask_at, batch, query[:, None], key[None, :], queries, keys, KIND)
        own, logits = _logits(q_tiles, k_tiles, scale, added, pre, G, BEFORE, PRECISION)
        of_mixed = where_seen(seen, products(grad_tiles, v_tiles, H, PRECISION), H)
        of_maps = mixed_back(of_mixed, post, G, H)
        of_logits = softmax_back(softmax(logits, logarithm, seen, 1, G), of_maps, summed, 1, G)
        if BEFORE:
            of_pre = add_row_sums(of_pre, of_logits, own, G, G)
            of_logits = mixed_back(of_logits, pre, G, G)
        rows = add_products(rows, of_logits, k_tiles, G, PRECISION)
    store_tiles(of_q, of_q_at, query, queries, of_parts(rows, PARTS, WIDE), scale, H, WIDTH, WIDE)

    of_weights += (tl.program_id(1) * tl.num_programs(0) + program) * (H * G + H + G * G)
    store_sums(of_weights, of_post, H * G)
    store_sums(of_weights + H * G, of_bias, H)
    store_sums(of_weights + H * G + H, of_pre, G * G)


@triton.jit
def _key_kernel(
    q, k, v, grad, lse, of_sums, of_k, of_v, before, after, bias, mask,
    q_at, k_at, v_at, grad_at, of_k_at, of_v_at, mask_at, queries, keys, groups, by_group, scale,
    G: tl.constexpr, H: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,
    BEFORE: tl.constexpr, BIAS: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    batch, group = program // groups, program % groups
    q, k, v, grad = _of_group((q, k, v, grad), (q_at, k_at, v_at, grad_at), batch, group, 4)
    of_k, of_v = _of_group((of_k, of_v), (of_k_at, of_v_at), batch, group, 2)
    pre, post, constant = _mixing(before, after + group * by_group, bias, G, H, BEFORE, BIAS)

    key = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    k_tiles = in_parts(load_tiles(k, k_at, key, keys, H, WIDTH, WIDE), PARTS, WIDE)
    v_tiles = load_tiles(v, v_at, key, keys, H, WIDTH, WIDE)
    k_rows, v_rows = zero_tiles(KEYS, WIDE, G), zero_tiles(KEYS, WIDE, H)
    first = tl.program_id(1) * KEYS // QUERIES * QUERIES if KIND == _CAUSAL else 0
    for start in range(first, queries, QUERIES):
        query = start + tl.arange(0, QUERIES)
        q_tiles = for_parts(load_tiles(q, q_at, query, queries, H, WIDTH, WIDE), PARTS)
        grad_tiles = load_tiles(grad, grad_at, query, queries, H, WIDTH, WIDE)
        logarithm = load_rows(lse + program * G * queries, query, queries, float("inf"), G)
        summed = load_rows(of_sums + program * G * queries, query, queries, 0.0, G)
        seen, added = seen_and_added(mask, mask_at, batch, query[None, :], key[:, None], queries, keys, KIND)
        logits = _logits(k_tiles, q_tiles, scale, added, pre, G, BEFORE, PRECISION)[1]
        maps = softmax(logits, logarithm, seen, 0, G)
        mixed_maps = mixed(maps, post, H, G)
        if BIAS:
            mixed_maps = add_where_seen(mixed_maps, constant, seen, H)
        v_rows = add_products(v_rows, mixed_maps, grad_tiles, H, PRECISION)
        of_mixed = where_seen(seen, products(v_tiles, grad_tiles, H, PRECISION), H)
        of_logits = softmax_back(maps, mixed_back(of_mixed, post, G, H), summed, 0, G)
        if BEFORE:
            of_logits = mixed_back(of_logits, pre, G, G)
        k_rows = add_products(k_rows, of_logits, q_tiles, G, PRECISION)
    store_tiles(of_k, of_k_at, key, keys, of_parts(k_rows, PARTS, WIDE), scale, H, WIDTH, WIDE)
    store_tiles(of_v, of_v_at, key, keys, v_rows, 1.0, H, WIDTH, WIDE)


# By how many heads a group has: all of their tiles are in registers together.
TILES = {1: Tiles(16, 32, 2)}
MANY = Tiles(16, 16, 2)


@on_its_device
def forward(
    query: Tensor, key: Tensor, value: Tensor, before: Tensor | None, after: Tensor, bias: Tensor | None,
    mask: Tensor | None, causal: bool, scale: float, parts: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """What heads give, of every map the logarithms of the sums of its softmax, and what each of a head's maps gives.

    The second is (batch, maps, queries), the last (batch, heads, parts, queries, head dim), and empty for whole heads.
    """
    q, k, v = with_rows(query), with_rows(key), with_rows(value)
    out, apart = torch.empty_like(query), room_apart(query, parts)
    lse = q.new_empty(len(q), q.shape[1] * parts, q.shape[2], dtype=torch.float32)
    steps = *(_steps(one, parts) for one in (q, k, v, out)), apart.stride()[:4], _by_mask(mask)
    sizes = _sizes(q, before, bias, mask, causal, parts)
    tiles = _tiles(q, parts)
    _forward_kernel[_grid(q, parts)](
        q, k, v, out, lse, apart, before, after, bias, mask, *steps, *_numbers(q, k, after, parts), scale,
        **sizes, QUERIES=tiles.rows, KEYS=tiles.across,
    )  # fmt: skip
    return out, lse, apart


@on_its_device
def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, lse: Tensor, apart: Tensor,
    before: Tensor | None, after: Tensor, bias: Tensor | None, mask: Tensor | None,
    causal: bool, scale: float, parts: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys and values, and by group those of after, bias and before one after the other."""
    q, k, v, grad = with_rows(query), with_rows(key), with_rows(value), with_rows(grad)
    of_q, of_k, of_v = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    of_sums, of_weights = torch.empty_like(lse), _weight_sums(lse, _grid(q, parts), len(q), parts)
    steps = [_steps(one, parts) for one in (q, k, v, grad)]
    rest = (*_numbers(q, k, after, parts), scale)
    sizes, tiles = _sizes(q, before, bias, mask, causal, parts), _tiles(q, parts)
    _query_kernel[_grid(q, parts)](
        q, k, v, grad, lse, apart, of_sums, of_q, of_weights, before, after, mask,
        *steps, apart.stride()[:4], _steps(of_q, parts), _by_mask(mask), *rest, **sizes,
        QUERIES=tiles.rows, KEYS=tiles.across,
    )  # fmt: skip
    _key_kernel[_grid(k, parts)](
        q, k, v, grad, lse, of_sums, of_k, of_v, before, after, bias, mask,
        *steps, _steps(of_k, parts), _steps(of_v, parts), _by_mask(mask), *rest,
        **sizes, QUERIES=tiles.across, KEYS=tiles.rows,
    )  # fmt: skip
    # Groups may share their weights.
    over = (0, 1) if len(after) == of_weights.shape[2] else (0, 1, 2)
    return of_q, of_k, of_v, of_weights.sum(dim=over).view(len(after), -1)


def _steps(x: Tensor, parts: int) -> tuple[int, int, int, int]:
    """From one sequence, group, head and token to the next. A head in parts is a group of its own."""
    batch, head, token, _ = x.stride()
    return (batch, 0, head, token) if parts == 1 else (batch, head, 0, token)


def _by_mask(mask: Tensor | None) -> tuple[int, int, int]:
    if mask is None:
        return 0, 0, 0
    batch, _, query, key = (step if size > 1 else 0 for step, size in zip(mask.stride(), mask.shape, strict=True))
    return batch, query, key


def _groups(x: Tensor, parts: int) -> tuple[int, int, int]:
    """How many groups, and in each maps and heads."""
    return (1, x.shape[1], x.shape[1]) if parts == 1 else (x.shape[1], parts, 1)


def _grid(x: Tensor, parts: int) -> tuple[int, int]:
    return len(x) * _groups(x, parts)[0], triton.cdiv(x.shape[2], _tiles(x, parts).rows)


def _tiles(x: Tensor, parts: int) -> Tiles:
    return TILES.get(_groups(x, parts)[2], MANY)


def _numbers(q: Tensor, k: Tensor, after: Tensor, parts: int) -> tuple[int, int, int, int]:
    return q.shape[2], k.shape[2], _groups(q, parts)[0], after.stride(0) if len(after) > 1 else 0


def _weight_sums(lse: Tensor, grid: tuple[int, int], batch: int, parts: int) -> Tensor:
    """Room for what each program adds to the gradients of weights."""
    maps = parts if parts > 1 else lse.shape[1]
    heads = 1 if parts > 1 else maps
    return lse.new_empty(grid[1], batch, grid[0] // batch, heads * maps + heads + maps * maps)


def _sizes(
    q: Tensor, before: Tensor | None, bias: Tensor | None, mask: Tensor | None, causal: bool, parts: int
) -> dict[str, Any]:
    _, maps, heads = _groups(q, parts)
    hides = tile_kernels.CAUSAL if causal else tile_kernels.OPEN
    if mask is not None:
        hides = tile_kernels.BOOLEAN if mask.dtype == torch.bool else tile_kernels.ADDED
    return {
        "G": maps,
        "H": heads,
        "PARTS": parts,
        "WIDTH": q.shape[3],
        # A product on tensor cores is of 16 or more.
        "WIDE": max(16, triton.next_power_of_2(q.shape[3])),
        "BEFORE": before is not None,
        "BIAS": bias is not None,
        "KIND": hides,
        # Three products of float32's leading bits are as good as one of all.
        "PRECISION": "tf32x3" if q.dtype == torch.float32 else "tf32",
        "num_warps": _tiles(q, parts).warps,
        # Blocks that are fetched ahead. More would not fit into the shared memory of smaller GPUs, of 99 KB.
        "num_stages": 1 if q.dtype == torch.float32 else 2,
    }
