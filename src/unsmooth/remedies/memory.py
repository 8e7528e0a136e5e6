"""What a remedy remembers of earlier tokens, kept in the model's own key/value cache.

A running sum must be reordered, repeated and thrown away together with the keys and values it belongs to. So it is
kept on the cache's layer, which is replaced by one whose class is extended by those few methods, and beam search and
batched generation work as they do for the plain model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError, expected

# Class of a cache layer to the same class extended. A class cannot be made while a model is being compiled, so those
# of transformers are made when a remedy is applied.
_REMEMBERING: dict[Any, Any] = {}


def get_ready() -> None:
    """Extend the classes of cache layers there are."""
    caches = sys.modules.get("transformers.cache_utils")
    if caches is None:
        return
    for kind in list(vars(caches).values()):
        if isinstance(kind, type) and issubclass(kind, caches.CacheLayerMixin):
            _extended(kind)


def _extended(kind: Any) -> Any:
    if kind not in _REMEMBERING:
        _REMEMBERING[kind] = _extend(kind)
    return _REMEMBERING[kind]


def _empty(kind: Any) -> Any:
    made = _extended(kind)
    return made.__new__(made)


def _extend(kind: Any) -> Any:
    """A cache layer's class, extended: what happens to keys and values happens to what is remembered too."""

    class Remembering(kind):  # type: ignore[misc]
        # Or transformers would register the new class in place of the old one.
        _layer_type = None
        remembered: dict[str, Tensor]

        def _each(self, change: Callable[[Tensor], Tensor]) -> None:
            self.remembered = {key: change(value) for key, value in self.remembered.items()}

        def reorder_cache(self, beam_idx: Tensor) -> None:
            super().reorder_cache(beam_idx)
            self._each(lambda value: value.index_select(0, beam_idx.to(value.device)))

        def batch_repeat_interleave(self, repeats: int) -> None:
            super().batch_repeat_interleave(repeats)
            self._each(lambda value: value.repeat_interleave(repeats, dim=0))

        def batch_select_indices(self, indices: Tensor) -> None:
            super().batch_select_indices(indices)
            self._each(lambda value: value[indices])

        def reset(self) -> None:
            super().reset()
            self.remembered = {}

        def __reduce__(self) -> tuple[Any, ...]:  # the class has no name to be found by when a cache is saved
            return _empty, (kind,), vars(self)

        def crop(self, *args: Any, **kwargs: Any) -> None:
            raise UnsmoothError(
                "Expected a key/value cache that only grows but got one that is cropped (assisted decoding does so), "
                "which a running mean over tokens cannot follow. Try generate() without an assistant model."
            )

    Remembering.__name__ = kind.__name__
    return Remembering


class Memory:
    """The place of one block in a key/value cache.

    Args:
        cache: A `transformers` cache.
        layer: The index under which the block's attention keeps its keys and values.
    """

    def __init__(self, cache: Any, layer: int) -> None:
        self._cache = getattr(cache, "self_attention_cache", cache)
        self._layer = layer
        self.past: int = int(self._cache.get_seq_length(layer))

    def read(self, key: str) -> Tensor | None:
        """What was written under `key` when the earlier tokens came by; None where there were none."""
        if self.past == 0:
            return None
        remembered: dict[str, Tensor] = getattr(self._place(), "remembered", {})
        if key not in remembered:
            raise expected(
                f"a key/value cache that this model filled with its remedies applied ({key!r} in it)",
                f"one of {self.past} tokens without it",
                "filling the cache after unsmooth.apply",
            )
        return remembered[key]

    def write(self, key: str, value: Tensor) -> None:
        """Keep `value`, whose first dimension is the batch, with the keys and values of this block."""
        place = self._place()
        if not hasattr(place, "remembered"):
            # Not by its __class__, which a compiler does not follow.
            remembering = _empty(type(place))
            remembering.__dict__.update(place.__dict__)
            remembering.remembered = {}
            place = self._cache.layers[self._layer] = remembering
        place.remembered[key] = value.detach() if not torch.is_grad_enabled() else value

    def _place(self) -> Any:
        layers = self._cache.layers
        while len(layers) <= self._layer:  # as the cache itself does when attention comes to it
            layers.append(self._cache.layer_class_to_replicate())
        if hasattr(layers[self._layer], "max_cache_len"):
            raise expected(
                "a cache that grows",
                f"a {type(layers[self._layer]).__name__} of fixed size",
                'generate() without cache_implementation="static"',
            )
        return layers[self._layer]
