"""Where hosts run their attention: an edit is put in its place, and taken out again.

Our networks and the attention layers of torch and timm, once opened, run what stands at their attribute `mix`, which
takes the arguments of torch's fused attention. Models of transformers look their attention function up under the name
that the configuration gives it: their attention module is given a view of that configuration with a name that leads
here.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from torch import Tensor, nn

from unsmooth.remedies.base import Edit
from unsmooth.remedies.call import LOWEST_SEEN, Call, Volatile
from unsmooth.remedies.mixing import LOWEST_SEEN_IN_WINDOWS, Mix, TorchMix, TransformersMix
from unsmooth.remedies.opening import (
    close_timm_attention,
    is_open_timm_attention,
    is_timm_attention,
    open_timm_attention,
)

# What the names under which transformers looks for attention functions begin with, where an edit stands before them.
_PREFIX = "unsmooth|"


class Mixing:
    """Stands where a host runs its attention, and has an edit do the mixing.

    Args:
        edit: An edit with `on_mixing`.
        now: Where the call of the block is.
        windowed: Whether attention works inside windows of an image.
    """

    def __init__(self, edit: Edit, now: Volatile, windowed: bool = False) -> None:
        self.edit = edit
        self.now = now
        self.lowest_seen = LOWEST_SEEN_IN_WINDOWS if windowed else LOWEST_SEEN

    def call(self) -> Call | None:
        """The call under way; None where attention is called by itself, outside its block."""
        return self.now.here().get("call")

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """In place of torch's fused attention."""
        call, mix = self.call(), TorchMix(query, key, value, *args, **kwargs)
        return mix() if call is None else self.edit.on_mixing(mix, call)


class RoutedConfig:
    """A configuration of transformers as one attention module sees it: its attention function is the edit's.

    Args:
        plain: The configuration, which others go on changing.
        mixing: What the function is to do.
        forward: The method that looks the function up.
    """

    def __init__(self, plain: Any, mixing: Mixing, forward: Any) -> None:
        self.plain = plain
        self.mixing = mixing
        self.functions = forward.__globals__["ALL_ATTENTION_FUNCTIONS"]
        self.eager = forward.__globals__["eager_attention_forward"]

    @property
    def _attn_implementation(self) -> str:
        return f"{_PREFIX}{self.plain._attn_implementation}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "plain" not in self.__dict__:  # while it is being copied
            raise AttributeError(name)
        return getattr(self.plain, name)


def _routed(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **told: Any
) -> tuple[Tensor, Tensor | None]:
    """The attention function that `RoutedConfig` leads to. Beside it the host's own map, or what `hand_on` was told."""
    config: Any = module.config
    name = config.plain._attn_implementation
    function = config.functions.get_interface(name, config.eager)
    call = config.mixing.call()
    if call is None:
        found: tuple[Tensor, Tensor | None] = function(module, query, key, value, attention_mask, **told)
        return found
    lowest, tensors = config.mixing.lowest_seen, (query, key, value)
    mix = TransformersMix(module, function, name != "eager", tensors, attention_mask, told, lowest)
    mixed_BHNE: Tensor = config.mixing.edit.on_mixing(mix, call)
    return mixed_BHNE.transpose(1, 2).contiguous(), mix.weights


def hand_on(mix: Mix, maps_BHNM: Tensor) -> None:
    """Have a map that an edit formed be the one that ``output_attentions`` gives, where the host would form its own."""
    if isinstance(mix, TransformersMix) and not mix._fused:
        mix.weights = maps_BHNM


def why_not_mixable(attention: nn.Module) -> str | None:
    """Why an edit cannot do an attention module's mixing, or None where it can."""
    if _has_mix(attention) or is_timm_attention(attention):
        return None
    # GPT-2 has a second way, around the function, with reorder_and_upcast_attn=True.
    if _looks_up(attention) and not getattr(attention, "reorder_and_upcast_attn", False):
        return None
    return f"its {type(attention).__name__} has attention written out inside, and no function that could run again"


def edit_mixing(attention: Any, mixing: Mixing) -> None:
    """Have `mixing` called where `attention` runs its own."""
    if _has_mix(attention):
        attention.mix = mixing
        return
    if is_timm_attention(attention):
        open_timm_attention(attention, mixing)
        return
    interface = sys.modules["transformers.modeling_utils"].AttentionInterface
    for name in (*interface().valid_keys(), "eager"):
        if not name.startswith(_PREFIX):
            interface.register(_PREFIX + name, _routed)
    attention.config = RoutedConfig(attention.config, mixing, _forward(attention))


def restore_mixing(attention: Any, edit: Edit) -> None:
    """Undo `edit_mixing`, where it was done for `edit`."""
    config = vars(attention).get("config")
    if isinstance(config, RoutedConfig) and config.mixing.edit is edit:
        attention.config = config.plain
    mixing = vars(attention).get("mix")
    if isinstance(mixing, Mixing) and mixing.edit is edit:
        if is_open_timm_attention(attention):
            close_timm_attention(attention)
        else:
            del attention.mix


def _has_mix(attention: nn.Module) -> bool:
    return isinstance(attention, nn.MultiheadAttention) or hasattr(type(attention), "mix")


def _forward(attention: nn.Module) -> Any:
    return inspect.unwrap(type(attention).forward)


def _looks_up(attention: nn.Module) -> bool:
    code = getattr(_forward(attention), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names and hasattr(attention, "config")
