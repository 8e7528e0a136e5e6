"""Which token ids are special: markers that carry no content, such as [CLS], <s> and padding."""

from __future__ import annotations

from typing import Any

from torch import nn

from unsmooth.models.origin import origin_of, unwrapped

_ROLES = ("bos", "eos", "pad", "cls", "sep", "mask", "decoder_start")


def special_ids(model: nn.Module) -> frozenset[int]:
    """The special token ids of `model`: its tokenizer's where it is known, else those its configuration names.

    >>> sorted(special_ids(nn.Linear(2, 2)))
    []
    """
    origin = origin_of(model)
    if origin is not None and origin.tokenizer is not None:
        return frozenset(origin.tokenizer.all_special_ids)
    inner = unwrapped(model)
    return _named_in(getattr(inner, "config", None)) | _named_in(getattr(inner, "generation_config", None))


def _named_in(config: Any) -> frozenset[int]:
    values = [getattr(config, f"{role}_token_id", None) for role in _ROLES]
    flat = [item for value in values for item in (value if isinstance(value, list | tuple) else [value])]
    # bool is an int; -1 is how some configurations say that there is no such token.
    return frozenset(item for item in flat if isinstance(item, int) and not isinstance(item, bool) and item >= 0)
