"""Which token ids are special: markers that carry no content, such as [CLS], <s> and padding.

A placeholder for a word, [UNK] or [MASK], is content.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from unsmooth.models.origin import origin_of, unwrapped

_MARKERS = ("bos", "eos", "pad", "cls", "sep", "decoder_start")
# Tokenizers call these special too, but each stands for a word of the text.
_PLACEHOLDERS = ("unk", "mask")


def special_ids(model: nn.Module, tokenizer: Any | None = None) -> frozenset[int]:
    """The special token ids of `model`: its tokenizer's where it is known, else those its configuration names.

    Args:
        model: Any module.
        tokenizer: The tokenizer in use, where it is not the one that the model came with.

    >>> sorted(special_ids(nn.Linear(2, 2)))
    []
    """
    origin = origin_of(model)
    tokenizer = tokenizer or (origin.tokenizer if origin else None)
    if tokenizer is not None:
        return _of_tokenizer(tokenizer)
    inner = unwrapped(model)
    config = getattr(inner, "config", None)
    # Models of images and texts name them in a part of their configuration.
    parts = (config, getattr(config, "text_config", None), getattr(inner, "generation_config", None))
    return frozenset().union(*map(_named_in, parts))


def _of_tokenizer(tokenizer: Any) -> frozenset[int]:
    # GPT-2 has one token for unknown, start and end: being a marker outweighs being a placeholder.
    placeholders = _named_in(tokenizer, _PLACEHOLDERS) - _named_in(tokenizer)
    return frozenset(tokenizer.all_special_ids) - placeholders


def _named_in(config: Any, roles: tuple[str, ...] = _MARKERS) -> frozenset[int]:
    values = [getattr(config, f"{role}_token_id", None) for role in roles]
    flat = [item for value in values for item in (value if isinstance(value, list | tuple) else [value])]
    # bool is an int; -1 is how some configurations say that there is no such token.
    return frozenset(item for item in flat if isinstance(item, int) and not isinstance(item, bool) and item >= 0)
