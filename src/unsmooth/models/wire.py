"""The parts of all blocks of a stack, found when somebody first asks and kept while the blocks are as they were.

They are found in a pass of the model: on data where some is at hand (`wire`), else on a few standard tokens, or, where
a model does not say what it takes, by calling its blocks one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models.block_parts import refuse
from unsmooth.models.block_record import calls_of, kind_of
from unsmooth.models.block_search import BlockParts, find_parts
from unsmooth.models.hooks import aside, uncompiled, whole_sequences
from unsmooth.models.host import Cross, Tap, expected_blocks
from unsmooth.models.origin import unwrapped
from unsmooth.models.remedied import HOME, edits_of
from unsmooth.models.walk import modules_of
from unsmooth.models.wiring import Wiring

_FOUND: WeakKeyDictionary[nn.Module, tuple[Hashable, BlockParts]] = WeakKeyDictionary()
_TOKENS, _TARGETS = 8, 6


def wire(blocks: Iterable[nn.Module], run: Callable[[], object]) -> None:
    """Find the parts of the blocks of one stack.

    Args:
        blocks: The blocks.
        run: Makes one pass through them, in evaluation mode; called only where one of them is not known yet, or was
            not called in a pass before. It may return why some of them were not called.

    Example:
        >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False).eval()
        >>> x = torch.randn(5, 1, 8, generator=torch.Generator().manual_seed(0))
        >>> wire(model.layers, lambda: model(x))
        >>> parts = parts_of(model.layers[1])
        >>> parts.wiring.style, parts.taps["mid"].module
        ('post', 'norm1')
    """
    new = [block for block in blocks if (known := _known(block)) is None or "block" in known.refused]
    if not new:
        return
    model, _ = expected_blocks(new[0])
    with aside(dict.fromkeys(one for module in (*new, model) if module is not None for one in modules_of(module))):
        calls, why = calls_of(new, run)
        found = {kind: find_parts(call) for kind, call in calls.items()}
    if any(parts.wiring is not None and parts.wiring.windowed for parts in found.values()):
        # Where an image is one window, a block may see more of them in a larger one.
        found = {kind: _windowed(parts) for kind, parts in found.items()}
    for block in new:
        kind = kind_of(block)
        _FOUND[block] = kind, found.get(kind, BlockParts({}, refused={"block": f"it is not called in a pass{why}"}))


def parts_of(block: nn.Module) -> BlockParts:
    """What is found of a block, now or before."""
    if (known := _known(block)) is not None:
        return known
    model, blocks = expected_blocks(block)
    wire(blocks, lambda: run_standard(model, blocks))
    return _FOUND[block][1]


def doubt(blocks: Iterable[nn.Module]) -> None:
    """Take back what was found of some blocks, as data have shown that a pass of another kind does not tell of them."""
    for block in blocks:
        _FOUND[block] = kind_of(block), BlockParts({}, refused={"block": "what is found on a few tokens does not hold"})


def _known(block: nn.Module) -> BlockParts | None:
    """Of a block with edits, what was found before: they change its weights, and it has the parts it had."""
    kept = getattr(getattr(block, HOME, None), "parts", None)
    if isinstance(kept, BlockParts):
        return _as_it_stands(block, kept)
    kind, parts = _FOUND.get(block, (None, None))
    return parts if parts is not None and (edits_of(block) or kind == kind_of(block)) else None


def _as_it_stands(block: nn.Module, parts: BlockParts) -> BlockParts:
    """The parts of a block whose norms a remedy may have put elsewhere since they were found."""
    wiring = parts.wiring
    if wiring is None or wiring.switch is None:
        return parts
    attribute, before_branches, _ = wiring.switch
    style: Literal["pre", "post"] = "pre" if getattr(block, attribute) == before_branches else "post"
    if style == wiring.style:
        return parts
    first, second = wiring.norms
    moved = {"normed": Tap(first, "output"), "mid": Tap(second, "input")}
    if style == "post":
        moved = {"normed": Tap(wiring.attention, "input"), "mid": Tap(first, "output")}
    taps = {site: moved.get(site, tap) for site, tap in parts.taps.items()}
    return replace(parts, taps=taps, wiring=replace(wiring, style=style))


def unreached(block: nn.Module) -> bool:
    """Whether no pass so far has reached a block, so that nothing is known of its parts."""
    return "block" in parts_of(block).refused


def remembered(block: nn.Module) -> BlockParts:
    """What was found of a block the last time, whatever was done to it since."""
    return _FOUND[block][1] if block in _FOUND else parts_of(block)


def _windowed(parts: BlockParts) -> BlockParts:
    return parts if parts.wiring is None else replace(parts, wiring=replace(parts.wiring, windowed=True))


# What a `Host` has for blocks whose parts are found: functions with names, so that they can be pickled.
def found_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Site to `Tap`."""
    return parts_of(block).taps


def found_wiring(block: nn.Module) -> Wiring:
    """The wiring of a block that was proved."""
    found: Wiring = _part(block, "wiring", "weights")
    return found


def why_unknown(block: nn.Module, part: Literal["wiring", "attention_module"] = "wiring") -> str | None:
    """Why a part of a block is not known; None where it is."""
    parts = parts_of(block)
    what = "weights" if part == "wiring" else "attention"
    return None if getattr(parts, part) is not None else _reason(parts, what)


def found_attention(block: nn.Module) -> str:
    """The module inside which the attention map is formed."""
    found: str = _part(block, "attention_module", "attention")
    return found


def found_cross(block: nn.Module) -> Cross:
    """The cross-attention of a block that has some."""
    found: Cross = _part(block, "cross", "cross weights")
    return found


def _part(block: nn.Module, part: str, what: str) -> Any:
    parts = parts_of(block)
    if (found := getattr(parts, part)) is None:
        why = _reason(parts, what)
        if why.startswith("Expected "):  # it says what to try
            raise UnsmoothError(why)
        raise refuse(block, f"{what} that its numbers prove", why)
    return found


def _reason(parts: BlockParts, what: str) -> str:
    return next((parts.refused[one] for one in (what, "attention", "block") if one in parts.refused), "none")


def run_standard(model: nn.Module | None, blocks: Sequence[nn.Module]) -> str | None:
    """One pass through some blocks, of their model where that says what it takes; leaves no trace in it.

    Returns:
        What the model or a block said to it, where that is an error.
    """
    every = [one for module in (*blocks, model) if module is not None for one in modules_of(module)]
    training = [module for module in every if module.training]
    random, said = torch.get_rng_state(), None
    try:
        for module in training:
            module.training = False
        with torch.no_grad(), torch.autocast(_kind_of_device(blocks), enabled=False):
            if model is None or (said := _said(lambda: _pass(model))) is not None:
                said = next((error for block in blocks if (error := _run_alone(block)) is not None), None)
    finally:
        torch.set_rng_state(random)
        for module in training:
            module.training = True
    return said


def _pass(model: nn.Module) -> None:
    with whole_sequences(model), uncompiled(model):
        model(**standard_batch(model))


def _run_alone(block: nn.Module) -> str | None:
    """Call a block with a stream as wide as its norms, and with another one to read where it wants that."""
    widths = Counter(p.numel() for p in block.parameters() if p.ndim == 1)
    some = next((p for p in block.parameters() if p.dtype.is_floating_point), None)
    if some is None or not widths:
        return "no weights"
    width = max(widths, key=lambda one: (widths[one], -one))
    draw = torch.Generator().manual_seed(0)
    x, memory = (torch.randn(2, n, width, generator=draw).to(some.device, some.dtype) for n in (_TOKENS, _TARGETS))
    said = _said(lambda: block(x))
    for given in ((x, memory), (x.transpose(0, 1), memory.transpose(0, 1))):
        if said is not None and _said(lambda given=given: block(*given)) is None:  # type: ignore[misc]
            return None
    return said


def _said(call: Callable[[], object]) -> str | None:
    """What a model says to what it may not be made for."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return None


def _kind_of_device(blocks: Iterable[nn.Module]) -> str:
    found = next((p.device.type for block in blocks for p in block.parameters()), "cpu")
    return "cpu" if found == "meta" else found


def standard_batch(model: nn.Module) -> dict[str, Tensor]:
    """Two sequences that a model takes, one of transformers or one whose first input may be ids of its embedding.

    No random number is drawn from the generators that others use.

    Raises:
        UnsmoothError: The model does not say what it takes.
    """
    inner = unwrapped(model)
    config, name = getattr(inner, "config", None), getattr(inner, "main_input_name", None)
    draw = torch.Generator().manual_seed(0)
    if config is None or not isinstance(name, str):
        table = next((one for one in inner.modules() if isinstance(one, nn.Embedding)), None)
        first = next(iter(signature(inner.forward).parameters), None)
        if table is None or first is None:
            raise expected("a model that says what it takes", f"{type(inner).__name__} without a config", "data")
        ids_BN = torch.randint(table.num_embeddings, (2, _TOKENS), generator=draw)
        return {first: ids_BN.to(table.weight.device)}
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    # What is offloaded is on no device until it runs.
    device = next((p.device for p in inner.parameters() if not p.is_meta), None)

    def ids(tokens: int) -> Tensor:
        return torch.randint(_number(text, "vocab_size", 2), (2, tokens), generator=draw)

    def pixels(of: Any) -> Tensor:
        side = _number(of, "image_size", 32)
        return torch.randn(2, _number(of, "num_channels", 3), side, side, generator=draw)

    batch: dict[str, Tensor] = {}
    if name == "pixel_values":
        batch[name] = pixels(config)
    elif name == "input_values":
        batch[name] = torch.randn(2, 4000, generator=draw)
    elif name == "input_features":
        frames = 2 * _number(config, "max_source_positions", 32)
        batch[name] = torch.randn(2, _number(config, "num_mel_bins", 80), frames, generator=draw)
    else:
        batch["input_ids"] = ids(_TOKENS)
        if hasattr(config, "vision_config") and hasattr(inner, "get_image_features"):
            batch["pixel_values"] = pixels(config.vision_config)
    if getattr(config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = ids(_TARGETS)
    dtypes = (p.dtype for p in inner.parameters() if p.is_floating_point() and p.element_size() > 1)
    dtype = next(dtypes, torch.float32)
    return {key: value.to(device, dtype if value.is_floating_point() else None) for key, value in batch.items()}


def _number(config: Any, name: str, default: int) -> int:
    found = getattr(config, name, None)
    found = found[0] if isinstance(found, list | tuple) and found else found
    return found if isinstance(found, int) else default
