"""The parts of all blocks of a stack, found in one pass and kept for as long as the model is as it was."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models.block_record import calls_of, kind_of
from unsmooth.models.block_search import BlockParts, find_parts
from unsmooth.models.hooks import whole_sequences
from unsmooth.models.host import Host, Tap
from unsmooth.models.origin import unwrapped
from unsmooth.models.remedied import HOME, edits_of
from unsmooth.models.wiring import Wiring

_FOUND: WeakKeyDictionary[nn.Module, tuple[Hashable, BlockParts]] = WeakKeyDictionary()
_NOT_CALLED = BlockParts({}, refused={"block": "not called in the pass"})


def wire(name: str, blocks: Iterable[nn.Module], run: Callable[[], Any], **others: Any) -> Host:
    """The host of blocks whose parts are found by running them.

    Args:
        name: What messages call it.
        blocks: The blocks of one stack.
        run: Makes one pass of their model, in evaluation mode; called only where some block is not known yet.
        others: What else a `Host` says.

    Example:
        >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False).eval()
        >>> x = torch.randn(5, 1, 8, generator=torch.Generator().manual_seed(0))
        >>> host = wire("torch", model.layers, lambda: model(x))
        >>> host.wiring(model.layers[1]).style, host.taps(model.layers[1])["mid"].module
        ('post', 'norm1')
    """
    blocks = list(blocks)
    new = [block for block in blocks if _known(block) is None]
    if new:
        calls = calls_of({str(i): block for i, block in enumerate(new)}, run)
        found = {kind: find_parts(call) for kind, call in calls.items()}
        if any(parts.wiring is not None and parts.wiring.windowed for parts in found.values()):
            # Where an image is one window, its blocks may see more of them in a larger one.
            found = {kind: _windowed(parts) for kind, parts in found.items()}
        for block in new:
            kind = kind_of(block)
            _FOUND[block] = kind, found.get(kind, _NOT_CALLED)
    return found_host(name, blocks, **others)


def parts_of_block(block: nn.Module) -> BlockParts:
    """What `wire` has found of a block, or of another one of its kind."""
    return _known(block) or _NOT_CALLED


def _known(block: nn.Module) -> BlockParts | None:
    """Of a block with edits, what was found before: they change its weights, and it has the parts it had."""
    kept = getattr(getattr(block, HOME, None), "parts", None)
    if isinstance(kept, BlockParts):
        return kept
    kind, parts = _FOUND.get(block, (None, None))
    return parts if parts is not None and (edits_of(block) or kind == kind_of(block)) else None


def _windowed(parts: BlockParts) -> BlockParts:
    return parts if parts.wiring is None else replace(parts, wiring=replace(parts.wiring, windowed=True))


@dataclass(frozen=True)
class _Look:
    """Looks up one part of a block; objects, not closures, so that what refers to them can be pickled."""

    part: str

    def __call__(self, block: nn.Module) -> Any:
        parts = parts_of_block(block)
        found = getattr(parts, self.part)
        if found is None:
            what = "weights" if self.part == "wiring" else "attention"
            why = parts.refused.get(what, parts.refused.get("attention", parts.refused.get("block", "not found")))
            raise expected(f"{what} of {type(block).__name__} that can be proved", why, "its residual stream alone")
        return found


def _taps(block: nn.Module) -> Mapping[str, Tap]:
    return parts_of_block(block).taps


def found_host(name: str, blocks: Iterable[nn.Module], **others: Any) -> Host:
    """A host that looks up what `wire` found of each block."""
    parts = [parts_of_block(block) for block in blocks]
    cross = next((one.cross for one in parts if one.cross is not None), None)
    wired = all(one.wiring is not None for one in parts)
    mapped = all(one.attention_module is not None for one in parts)
    return Host(
        name=name,
        blocks=(),
        taps=_taps,
        example=name,
        prepare=whole_sequences,
        wiring=_Look("wiring") if wired else None,
        attention_module=_Look("attention_module") if mapped else None,
        cross=cross,
        **others,
    )


def why_refused(blocks: Iterable[nn.Module]) -> dict[str, str]:
    """What was not found in blocks, or not accepted, with the reason."""
    return {what: why for block in blocks for what, why in parts_of_block(block).refused.items()}


# What models call their inputs, in the configuration's words for how large they are.
_SIZES = (("image_size", "pixel_values"), ("num_mel_bins", "input_features"))


def standard_batch(model: nn.Module) -> dict[str, Tensor]:
    """Two sequences of eight tokens that a model of transformers takes, where there is no batch to look at.

    No random number is drawn from the generators that others use.

    Raises:
        UnsmoothError: The model does not say what it takes.
    """
    inner = unwrapped(model)
    config, name = getattr(inner, "config", None), getattr(inner, "main_input_name", None)
    if config is None or name is None:
        raise expected("a model that says what it takes", f"{type(inner).__name__} without a config", "data")
    draw = torch.Generator().manual_seed(0)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    device = next((p.device for p in inner.parameters()), None)
    batch: dict[str, Tensor] = {}
    if name == "pixel_values":
        side = _number(config, "image_size", 32)
        batch[name] = torch.randn(2, _number(config, "num_channels", 3), side, side, generator=draw)
    elif name == "input_values":
        batch[name] = torch.randn(2, 4000, generator=draw)
    elif name == "input_features":
        frames = 2 * _number(config, "max_source_positions", 32)
        batch[name] = torch.randn(2, _number(config, "num_mel_bins", 80), frames, generator=draw)
    else:
        batch["input_ids"] = torch.randint(_number(text, "vocab_size", 2), (2, 8), generator=draw)
        if hasattr(config, "vision_config") and hasattr(inner, "get_image_features"):
            side = _number(config.vision_config, "image_size", 32)
            batch["pixel_values"] = torch.randn(
                2, _number(config.vision_config, "num_channels", 3), side, side, generator=draw
            )
    if getattr(config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = torch.randint(_number(text, "vocab_size", 2), (2, 6), generator=draw)
    return {key: value.to(device) for key, value in batch.items()}


def run_standard(model: nn.Module) -> None:
    """One pass on the standard batch, in evaluation mode and without gradients; leaves no trace in the model."""
    training = [module for module in model.modules() if module.training]
    batch = standard_batch(model)
    cpu = torch.get_rng_state()
    try:
        for module in training:
            module.training = False
        with torch.no_grad():
            model(**batch)
    finally:
        torch.set_rng_state(cpu)
        for module in training:
            module.training = True


def _number(config: Any, name: str, default: int) -> int:
    found = getattr(config, name, None)
    found = found[0] if isinstance(found, list | tuple) and found else found
    return found if isinstance(found, int) else default


__all__ = ["Wiring", "found_host", "run_standard", "standard_batch", "why_refused", "wire"]
