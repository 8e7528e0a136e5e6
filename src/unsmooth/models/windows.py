"""Attention that looks at windows of an image: from a map of each window to one of all tokens, zero between windows.

Where in the windows each token went is seen by running the block once more on tokens that are all different.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from unsmooth.models.hooks import Hooks, aside
from unsmooth.models.watch import find_input, find_output, with_first_input

# Numbers in one map of all tokens, above which it is not made.
_LARGEST = 1 << 27
_KNOWN: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], Tensor | None]] = WeakKeyDictionary()


def map_of_windows(
    block: nn.Module,
    attention: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    maps_WHMM: Tensor,
    sizes: Sequence[tuple[int, int]],
) -> list[Tensor]:
    """The map (batch, heads, tokens, tokens), alone in a list; nothing where these are no windows of all tokens.

    Args:
        block: The block.
        attention: The module in it that is called with windows.
        args: With what the block was called.
        kwargs: Likewise.
        maps_WHMM: Maps of (batch · windows, heads, tokens of a window, the same).
        sizes: How many sequences and tokens each there may be.
    """
    if maps_WHMM.ndim != 4 or maps_WHMM.shape[-1] != maps_WHMM.shape[-2]:
        return []
    windows, heads, width = maps_WHMM.shape[:3]
    fitting = [one for one in sizes if windows % one[0] == 0 and windows * width >= one[0] * one[1]]
    if not fitting or fitting[0][0] * heads * fitting[0][1] ** 2 > _LARGEST:
        return []
    (batch, tokens), stream = fitting[0], find_input(args, kwargs)
    assert stream is not None  # or there would be no sizes
    known = _KNOWN.setdefault(block, {})
    if stream.shape not in known:
        known[stream.shape] = _places(block, attention, args, kwargs, stream)
    places = known[stream.shape]
    if places is None or places.numel() != windows * width:
        return []
    places_WM = places.reshape(windows, width).to(maps_WHMM.device)
    real_WM, own_W = places_WM >= 0, places_WM.amax(dim=1) // tokens
    apart = bool((~real_WM | (places_WM // tokens == own_W[:, None])).all())
    looked_at_filling = bool((maps_WHMM * (real_WM[:, None, :, None] & ~real_WM[:, None, None])).any())
    if not apart or looked_at_filling or places[places >= 0].sort().values.tolist() != [*range(batch * tokens)]:
        return []
    whole_BHNN = maps_WHMM.new_zeros(batch, heads, tokens, tokens)
    window, query, key = (real_WM[:, :, None] & real_WM[:, None]).nonzero(as_tuple=True)
    at_WM = places_WM % tokens
    whole_BHNN[own_W[window], :, at_WM[window, query], at_WM[window, key]] = maps_WHMM[window, :, query, key]
    return [whole_BHNN]


def _places(
    block: nn.Module, attention: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], stream: Tensor
) -> Tensor | None:
    """Which token each one in the windows is, in order, -1 for what fills a window up; None where that is not seen."""
    other = torch.randn(stream.shape, generator=torch.Generator().manual_seed(0)).to(stream.device, stream.dtype)
    tokens, windows = [other], list[Tensor]()

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        windows.extend([] if (given := find_input(args, kwargs)) is None else [given.clone()])

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        made = find_output(output)
        if not windows and made is not None and made.numel() == other.numel():
            tokens.append(made.clone())

    args, kwargs = with_first_input(args, kwargs, other)
    # Dropout of a model in training draws numbers; a block may say anything to a call of its own.
    kept = torch.random.fork_rng([stream.device] if stream.is_cuda else [])
    with suppress(Exception), aside(), Hooks() as hook, torch.no_grad(), kept:
        hook(attention.register_forward_pre_hook, enter, with_kwargs=True)
        for module in block.modules():
            if module not in (block, attention):
                hook(module.register_forward_hook, leave)
        block(*args, **kwargs)
    for one in tokens[::-1] if len(windows) == 1 else ():
        places = {row.tobytes(): place for place, row in enumerate(_rows(one))}
        found = torch.tensor([places.get(row.tobytes(), -1) for row in _rows(windows[0])])
        if bool((found >= 0).any()):
            return found
    return None


def _rows(tokens: Tensor) -> Any:
    return tokens.reshape(-1, tokens.shape[-1]).float().cpu().numpy()
