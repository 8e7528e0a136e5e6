"""What the kernels of `mixed_heads` are made of: tiles of several heads at a time, as tuples.

One tile with an axis of heads would be padded to a power of two, and no product over tokens takes such tiles well.
Imported only where there is a GPU, since Triton comes with its torch.
"""

# Functions of Triton have no types.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment"

from __future__ import annotations

import triton
import triton.language as tl

from unsmooth.remedies.call import LOWEST_SEEN

_LOWEST = tl.constexpr(LOWEST_SEEN)
# What hides keys: nothing, the future, a mask of booleans, one that is added to the logits.
OPEN, CAUSAL, BOOLEAN, ADDED = range(4)
_CAUSAL, _BOOLEAN, _ADDED = tl.constexpr(CAUSAL), tl.constexpr(BOOLEAN), tl.constexpr(ADDED)


@triton.jit
def load_tiles(start, at, row, rows, COUNT: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """By head a tile (rows, channels), zeros beyond the last row and channel.

    `at` has the steps from one sequence, group, head and row to the next; channels lie one after the other.
    """
    channel = tl.arange(0, WIDE)
    here = (row < rows)[:, None] & (channel < WIDTH)[None, :]
    found = ()
    for one in tl.static_range(COUNT):
        place = start + one * at[2] + row[:, None] * at[3] + channel[None, :]
        found += (tl.load(place, here, other=0.0),)
    return found


@triton.jit
def in_parts(tiles, PARTS: tl.constexpr, WIDE: tl.constexpr):
    """A head's tile as its parts, each beside zeros: part i has channels i, i + PARTS, and so on."""
    found = tiles
    if PARTS > 1:
        channel = tl.arange(0, WIDE)[None, :]
        found = ()
        for one in tl.static_range(PARTS):
            found += (tl.where(channel % PARTS == one, tiles[0], 0.0).to(tiles[0].dtype),)
    return found


@triton.jit
def for_parts(tiles, PARTS: tl.constexpr):
    """A head's tile for each of its parts, to be multiplied with what has zeros elsewhere."""
    found = tiles
    if PARTS > 1:
        found = ()
        for _ in tl.static_range(PARTS):
            found += (tiles[0],)
    return found


@triton.jit
def of_parts(tiles, PARTS: tl.constexpr, WIDE: tl.constexpr):
    """The other way around: a head's tile, of each part the channels that are its own."""
    found = tiles
    if PARTS > 1:
        channel = tl.arange(0, WIDE)[None, :]
        whole = tiles[0]
        for one in tl.static_range(1, PARTS):
            whole = tl.where(channel % PARTS == one, tiles[one], whole)
        found = (whole,)
    return found


@triton.jit
def store_tiles(start, at, row, rows, tiles, scale, COUNT: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """What `load_tiles` reads, multiplied by `scale`."""
    channel = tl.arange(0, WIDE)
    here = (row < rows)[:, None] & (channel < WIDTH)[None, :]
    for one in tl.static_range(COUNT):
        place = start + one * at[2] + row[:, None] * at[3] + channel[None, :]
        tl.store(place, (tiles[one] * scale).to(start.dtype.element_ty), here)


@triton.jit
def load_rows(start, row, rows, other, COUNT: tl.constexpr):
    """By head one number per row."""
    found = ()
    for one in tl.static_range(COUNT):
        found += (tl.load(start + one * rows + row, row < rows, other=other),)
    return found


@triton.jit
def store_rows(start, row, rows, numbers, COUNT: tl.constexpr):
    """The other way around."""
    for one in tl.static_range(COUNT):
        tl.store(start + one * rows + row, numbers[one], row < rows)


@triton.jit
def load_numbers(start, COUNT: tl.constexpr):
    """Numbers that lie one after the other."""
    found = ()
    for one in tl.static_range(COUNT):
        found += (tl.load(start + one).to(tl.float32),)
    return found


@triton.jit
def store_sums(start, numbers, COUNT: tl.constexpr):
    """Of numbers per row their sums, one after the other."""
    for one in tl.static_range(COUNT):
        tl.store(start + one, tl.sum(numbers[one], 0))


@triton.jit
def filled_rows(value, ROWS: tl.constexpr, COUNT: tl.constexpr):
    """By head the same number in each row."""
    found = ()
    for _ in tl.static_range(COUNT):
        found += (tl.full([ROWS], value, tl.float32),)
    return found


@triton.jit
def zero_tiles(ROWS: tl.constexpr, WIDE: tl.constexpr, COUNT: tl.constexpr):
    """By head a tile of zeros to add up onto."""
    found = ()
    for _ in tl.static_range(COUNT):
        found += (tl.zeros([ROWS, WIDE], tl.float32),)
    return found


@triton.jit
def products(left, right, COUNT: tl.constexpr, PRECISION: tl.constexpr):
    """By head every row of one times every row of the other."""
    found = ()
    for one in tl.static_range(COUNT):
        found += (tl.dot(left[one], tl.trans(right[one]), input_precision=PRECISION),)
    return found


@triton.jit
def add_products(totals, left, right, COUNT: tl.constexpr, PRECISION: tl.constexpr):
    """By head `totals` and the matrix product of the other two, the left one rounded as the right one is."""
    found = ()
    for one in tl.static_range(COUNT):
        rounded = left[one].to(right[one].dtype)
        found += (tl.dot(rounded, right[one], totals[one], input_precision=PRECISION),)
    return found


@triton.jit
def in_floats(tiles, COUNT: tl.constexpr):
    """Not rounded any further."""
    found = ()
    for one in tl.static_range(COUNT):
        found += (tiles[one].to(tl.float32),)
    return found


@triton.jit
def scaled(tiles, scale, added, COUNT: tl.constexpr):
    """Each times a number and with something added."""
    found = ()
    for one in tl.static_range(COUNT):
        found += (tiles[one] * scale + added,)
    return found


@triton.jit
def mixed(tiles, weights, TO: tl.constexpr, OF: tl.constexpr):
    """Weighted sums over heads, by a matrix (TO, OF) that lies row by row."""
    found = ()
    for to in tl.static_range(TO):
        total = weights[to * OF] * tiles[0]
        for of in tl.static_range(1, OF):
            total += weights[to * OF + of] * tiles[of]
        found += (total,)
    return found


@triton.jit
def mixed_back(tiles, weights, TO: tl.constexpr, OF: tl.constexpr):
    """By the transpose of a matrix (OF, TO) that lies row by row."""
    found = ()
    for to in tl.static_range(TO):
        total = weights[to] * tiles[0]
        for of in tl.static_range(1, OF):
            total += weights[of * TO + to] * tiles[of]
        found += (total,)
    return found


@triton.jit
def add_row_sums(totals, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """By row, each tile on the left times each on the right, added up onto `totals`, which has all pairs."""
    found = ()
    for one in tl.static_range(LEFT):
        for other in tl.static_range(RIGHT):
            found += (totals[one * RIGHT + other] + tl.sum(left[one] * right[other], 1),)
    return found


@triton.jit
def where_seen(seen, tiles, COUNT: tl.constexpr):
    """Zeros elsewhere."""
    found = ()
    for one in tl.static_range(COUNT):
        found += (tl.where(seen, tiles[one], 0.0),)
    return found


@triton.jit
def add_where_seen(tiles, numbers, seen, COUNT: tl.constexpr):
    """By head a number added to what is seen."""
    found = ()
    for one in tl.static_range(COUNT):
        found += (tiles[one] + tl.where(seen, numbers[one], 0.0),)
    return found


@triton.jit
def seen_and_added(mask, at, batch, query, key, queries, keys, KIND: tl.constexpr):
    """Where a query sees a key, and what a mask adds to the logit. `query` and `key` are of two dimensions."""
    seen = (query < queries) & (key < keys)
    added = 0.0
    if KIND == _CAUSAL:
        seen = seen & (key <= query)
    elif KIND == _BOOLEAN:
        seen = seen & (tl.load(mask + batch * at[0] + query * at[1] + key * at[2], seen, other=0) != 0)
    elif KIND == _ADDED:
        given = tl.load(mask + batch * at[0] + query * at[1] + key * at[2], seen, other=0.0).to(tl.float32)
        seen = seen & (given > _LOWEST)
        added = tl.where(seen, given, 0.0)
    return seen, added


@triton.jit
def add_exponentials(tops, totals, logits, seen, COUNT: tl.constexpr):
    """By row the largest logit so far, and the sum of exponentials beside it."""
    new_tops, new_totals = (), ()
    for one in tl.static_range(COUNT):
        hidden = tl.where(seen, logits[one], float("-inf"))
        top = tl.maximum(tops[one], tl.max(hidden, 1))
        finite = tl.where(top == float("-inf"), 0.0, top)
        more = tl.sum(tl.exp(hidden - finite[:, None]), 1)
        new_tops += (top,)
        new_totals += (totals[one] * tl.exp(tops[one] - finite) + more,)
    return new_tops, new_totals


@triton.jit
def add_attention(tops, totals, sums, logits, seen, values, COUNT: tl.constexpr, PRECISION: tl.constexpr):
    """By map what `add_exponentials` gives, and the sums of values that go with them; all maps are of one head."""
    new_tops, new_totals, new_sums = (), (), ()
    for one in tl.static_range(COUNT):
        hidden = tl.where(seen, logits[one], float("-inf"))
        top = tl.maximum(tops[one], tl.max(hidden, 1))
        finite = tl.where(top == float("-inf"), 0.0, top)
        before, now = tl.exp(tops[one] - finite), tl.exp(hidden - finite[:, None])
        rounded = now.to(values[0].dtype)
        new_tops += (top,)
        new_totals += (totals[one] * before + tl.sum(now, 1),)
        new_sums += (tl.dot(rounded, values[0], sums[one] * before[:, None], input_precision=PRECISION),)
    return new_tops, new_totals, new_sums


@triton.jit
def divided(tiles, totals, COUNT: tl.constexpr):
    """By map each row over its total; nothing where there is none."""
    found = ()
    for one in tl.static_range(COUNT):
        found += (tiles[one] / tl.where(totals[one] > 0.0, totals[one], 1.0)[:, None],)
    return found


@triton.jit
def logarithms(tops, totals, COUNT: tl.constexpr):
    """Of the sums of all exponentials; infinite where a row sees nothing, so that its map is nothing."""
    found = ()
    for one in tl.static_range(COUNT):
        found += (tl.where(totals[one] > 0.0, tops[one] + tl.log(totals[one]), float("inf")),)
    return found


@triton.jit
def softmax(logits, logarithm, seen, OVER: tl.constexpr, COUNT: tl.constexpr):
    """By the known logarithms of its sums, which go over axis `OVER`."""
    found = ()
    for one in tl.static_range(COUNT):
        shifted = logits[one] - tl.expand_dims(logarithm[one], OVER)
        found += (tl.exp(tl.where(seen, shifted, float("-inf"))),)
    return found


@triton.jit
def softmax_back(maps, of_maps, of_sums, OVER: tl.constexpr, COUNT: tl.constexpr):
    """Gradients of the logits, by those of the maps and the sums of map times gradient over axis `OVER`."""
    found = ()
    for one in tl.static_range(COUNT):
        found += (maps[one] * (of_maps[one] - tl.expand_dims(of_sums[one], OVER)),)
    return found
