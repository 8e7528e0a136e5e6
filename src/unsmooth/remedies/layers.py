"""Which layers a remedy goes into: indices, a slice, or a fraction of the depth."""

from __future__ import annotations

from collections.abc import Sequence

from unsmooth.errors import UnsmoothError, expected

Layers = int | float | slice | Sequence[int] | None


def choose_layers(layers: Layers, depth: int, what: str = "layers") -> list[int]:
    """The chosen indices among `depth` layers, in order.

    Args:
        layers: None for all, an index (negative from the end), several of them, a slice, or a fraction: 0.5 is the
            first half, -0.5 the last half, as in Python's slices.
        depth: How many there are.
        what: What they are, where they are not layers.

    Raises:
        UnsmoothError: An index is out of range, a fraction is not between -1 and 1, a slice has ends that are no whole
            numbers or a step of 0, or nothing is chosen.

    Example:
        >>> choose_layers(slice(8, None), 12), choose_layers([0, -1], 12), choose_layers(-0.25, 12)
        ([8, 9, 10, 11], [0, 11], [9, 10, 11])
        >>> choose_layers(12, 12)
        Traceback (most recent call last):
        unsmooth.errors.UnsmoothError: Expected layers from 0 to 11 (or -12 to -1) but got 12. Try layers=slice(0, 12).
    """
    if layers is None:
        return list(range(depth))
    if isinstance(layers, bool):
        raise _not_chosen(layers, depth, what)
    if isinstance(layers, slice):
        chosen = _slice(layers, depth, what)
    elif isinstance(layers, float):
        chosen = _fraction(layers, depth, what)
    elif isinstance(layers, int):
        chosen = [_index(layers, depth, what)]
    elif isinstance(layers, Sequence) and not isinstance(layers, str | bytes):
        chosen = sorted({_index(layer, depth, what) for layer in layers})
    else:
        raise _not_chosen(layers, depth, what)
    if not chosen:
        raise expected(f"at least one of {depth} {what}", f"none ({what}={layers!r})", f"{what}=slice(0, {depth})")
    return chosen


def _slice(layers: slice, depth: int, what: str) -> list[int]:
    try:
        return list(range(depth))[layers]
    except (TypeError, ValueError):  # ends that are no whole numbers, or a step of 0
        raise _not_chosen(layers, depth, what) from None


def _fraction(fraction: float, depth: int, what: str) -> list[int]:
    if not 0.0 < abs(fraction) <= 1.0:
        raise expected(
            f"a fraction of {_all(what)} between -1 and 1, not 0", fraction, f"{what}=0.5 for the first half"
        )
    # At least one layer: a small fraction of a shallow model still means its first, or last, layer.
    count = max(1, round(abs(fraction) * depth))
    return list(range(count)) if fraction > 0 else list(range(depth - count, depth))


def _index(layer: object, depth: int, what: str) -> int:
    if not isinstance(layer, int) or isinstance(layer, bool):
        raise _not_chosen(layer, depth, what)
    if not -depth <= layer < depth:
        raise expected(f"{what} from 0 to {depth - 1} (or -{depth} to -1)", layer, f"{what}=slice(0, {depth})")
    return layer % depth


def _not_chosen(got: object, depth: int, what: str) -> UnsmoothError:
    hint = f"{what}=[0, {depth - 1}] or {what}=0.5"
    return expected(f"{what} as indices, a slice or a fraction of {_all(what)}", repr(got), hint)


def _all(what: str) -> str:
    return "depth" if what == "layers" else f"all {what}"
