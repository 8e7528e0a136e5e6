"""The parts of all blocks of a stack, found when somebody first asks and kept while the blocks are as they were.

They are found in a pass of the model: on data where some is at hand (`wire`), or was (`remember_pass`), else on a few
standard tokens, or, where a model does not say what it takes, by calling its blocks one by one.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models.block_parts import refuse
from unsmooth.models.block_record import BlockCall, calls_of, kind_of
from unsmooth.models.block_search import NO_MAP, BlockParts, find_parts
from unsmooth.models.hooks import Hooks, aside, uncompiled, whole_sequences
from unsmooth.models.host import Cross, Tap, expected_blocks
from unsmooth.models.look import rows_among
from unsmooth.models.origin import unwrapped
from unsmooth.models.remedied import HOME, edits_of
from unsmooth.models.walk import modules_of
from unsmooth.models.watch import first_input
from unsmooth.models.wiring import Wiring

_FOUND: WeakKeyDictionary[nn.Module, tuple[Hashable, BlockParts]] = WeakKeyDictionary()
# For a block of which more may be known: a call of a model on data, which may reach it.
_PASSES: WeakKeyDictionary[nn.Module, Callable[[], object]] = WeakKeyDictionary()
_TOKENS, _TARGETS = 8, 6
B = TypeVar("B")
M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


def wire(blocks: Iterable[nn.Module], run: Callable[[], object]) -> None:
    """Find the parts of the blocks of one stack.

    Args:
        blocks: The blocks.
        run: Makes one pass through them, in evaluation mode; called only where one of them is not known yet, or not
            wholly. It may return why some of them were not called.

    Example:
        >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False).eval()
        >>> x = torch.randn(5, 1, 8, generator=torch.Generator().manual_seed(0))
        >>> wire(model.layers, lambda: model(x))
        >>> parts = parts_of(model.layers[1])
        >>> parts.wiring.style, parts.taps["mid"].module
        ('post', 'norm1')
    """
    new = [block for block in blocks if _is_open(block)]
    for block in new:
        _PASSES.pop(block, None)
    if not new:
        return
    model, _ = expected_blocks(new[0])
    with aside(dict.fromkeys(one for module in (*new, model) if module is not None for one in modules_of(module))):
        calls, why = calls_of(new, run)
        found = {kind: replace(find_parts(call), rows=_rows_of(call)) for kind, call in calls.items()}
        apart = [block for block in new if kind_of(block) in found and _has_own_numbers(block, found[kind_of(block)])]
        own, _ = calls_of(apart, run, id) if len(apart) > 1 else ({}, "")
        found |= {kind: replace(find_parts(call), rows=_rows_of(call)) for kind, call in own.items()}
    if any(parts.wiring is not None and parts.wiring.windowed for parts in found.values()):
        # Where an image is one window, a block may see more of them in a larger one.
        found = {kind: _windowed(parts) for kind, parts in found.items()}
    for block in new:
        kind, known = kind_of(block), _known(block)
        if kind in found or known is None:
            parts = found.get(id(block), found.get(kind))
            _FOUND[block] = kind, parts or BlockParts({}, refused={"block": f"it is not called in a pass{why}"})


def _has_own_numbers(block: nn.Module, parts: BlockParts) -> bool:
    """Whether something is multiplied by a number that no attribute of a block says, as one that goes by depth.

    Another block of its kind may have another.
    """
    wiring = parts.wiring
    numbers = [
        *(tap.times for tap in parts.taps.values()),
        *(() if wiring is None else (*wiring.scales, *wiring.keeps)),
    ]
    said = [value for value in vars(block).values() if isinstance(value, float)]
    return any(
        not isinstance(one, str) and one != 1.0 and not any(abs(one - value) <= 1e-5 * abs(one) for value in said)
        for one in numbers
    )


def _rows_of(call: BlockCall) -> str | None:
    found = rows_among(call.block, call.args, call.kwargs, first_input(call.args, call.kwargs).shape)
    return None if found is None else found[0]


def remember_pass(
    blocks: Iterable[nn.Module], call: Callable[[nn.Module, B], object], model: nn.Module, batch: B
) -> None:
    """Keep what a model was called with until somebody asks for parts of its blocks that are not known yet.

    The batch is kept as long, and the model no longer than others keep it.
    """
    held = ref(model)

    def run() -> object:
        found = held()
        return None if found is None else _said(lambda: call(found, batch), but=UnsmoothError)

    for block in blocks:
        if _is_open(block):
            _PASSES[block] = run


def forget_pass(blocks: Iterable[nn.Module]) -> None:
    """Let go of what was kept for these blocks."""
    for block in blocks:
        _PASSES.pop(block, None)


def deep_copy(model: M) -> M:
    """A copy of a model, of whose blocks the same is known."""
    copied = copy.deepcopy(model)
    for block, other in zip(modules_of(model), modules_of(copied), strict=True):
        if block in _PASSES:
            parts_of(block)
        if block in _FOUND:
            _FOUND[other] = _FOUND[block]
    return copied


def _is_open(block: nn.Module) -> bool:
    """Whether a pass may tell more of a block than is known; of one with edits, they would be taken for its parts."""
    known = _known(block)
    return known is None or bool({"block", "attention", "weights"} & {*known.refused} and not edits_of(block))


def parts_of(block: nn.Module) -> BlockParts:
    """What is found of a block, now or before."""
    if (known := _known(block)) is not None and block not in _PASSES:
        return known
    model, blocks = expected_blocks(block)
    if (run := _PASSES.get(block)) is not None:
        wire(blocks, lambda: run_quietly(blocks, model, run))
    if (known := _known(block)) is None or "block" in known.refused:
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


def attends(block: nn.Module) -> bool:
    """Whether a pass shows attention in a block, whatever is known of it; not in the other layers of hybrid stacks."""
    return parts_of(block).refused.get("attention") != NO_MAP


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
    """One pass through some blocks without data, of the largest part of their model that takes a standard batch.

    Returns:
        What a part or a block said to it, where none of them ran.
    """
    called, said = set[nn.Module](), list[str]()
    with Hooks() as hook:
        for block in blocks:
            hook(block.register_forward_hook, lambda block, *_: called.add(block))
        for part in () if model is None else _around(model, blocks):
            error = _said(lambda part=part: run_quietly(blocks, model, lambda: part(**standard_batch(part))))  # type: ignore[misc]
            if called >= {*blocks}:
                return None
            said += [] if error is None else [error]
        left = [block for block in blocks if block not in called]
        said += filter(None, run_quietly(blocks, model, lambda: [*map(_run_alone, left)]))
    return next(iter(said), None)


def _around(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """The modules that hold all of some blocks and can be called, the whole model first."""
    path = next((name for name, module in model.named_modules() if module is blocks[0]), "").split(".")
    found = [model.get_submodule(".".join(path[:depth])) for depth in range(len(path))]
    lists = (nn.ModuleList, nn.ModuleDict)
    return [one for one in found if not isinstance(one, lists) and {*blocks} <= {*one.modules()}]


def run_quietly(blocks: Sequence[nn.Module], model: nn.Module | None, run: Callable[[], T]) -> T:
    """Make a pass through blocks in evaluation mode that leaves no trace in them, nor in their model."""
    whole = blocks[0] if model is None else model
    training = [one for module in dict.fromkeys((*blocks, whole)) for one in modules_of(module) if one.training]
    random = torch.get_rng_state()
    try:
        for module in training:
            module.training = False
        with (
            torch.no_grad(),
            torch.autocast(_kind_of_device(blocks), enabled=False),
            whole_sequences(whole),
            uncompiled(whole),
        ):
            return run()
    finally:
        torch.set_rng_state(random)
        for module in training:
            module.training = True


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


def _said(call: Callable[[], object], but: type[Exception] | tuple[()] = ()) -> str | None:
    """What a model says to what it may not be made for, `but` what is raised."""
    try:
        call()
    except but:
        raise
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
    config, taken = getattr(inner, "config", None), signature(inner.forward).parameters
    draw = torch.Generator().manual_seed(0)
    if config is None:
        table = next((one for one in inner.modules() if isinstance(one, nn.Embedding)), None)
        first = next(iter(taken), None)
        if table is None or first is None:
            raise expected("a model that says what it takes", f"{type(inner).__name__} without a config", "data")
        ids_BN = torch.randint(table.num_embeddings, (2, _TOKENS), generator=draw)
        return {first: ids_BN.to(table.weight.device)}
    # What is offloaded is on no device until it runs.
    device = next((p.device for p in inner.parameters() if not p.is_meta), None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    patch, depth = _number(config, 8, "patch_size"), _number(config, 1, "temporal_patch_size")
    side = 2 * _number(config, 2, "spatial_merge_size", "merge_size")
    a_patch = _number(config, 3, "num_channels", "in_channels", "in_chans") * patch * patch
    packed, in_rows = "grid_thw" in taken, "spatial_shapes" in taken
    makers: dict[str, Callable[[], Tensor]] = {
        "input_ids": lambda: torch.randint(_number(text, 2, "vocab_size"), (2, _TOKENS), generator=draw),
        "decoder_input_ids": lambda: torch.randint(_number(text, 2, "vocab_size"), (2, _TARGETS), generator=draw),
        "inputs_embeds": lambda: normal(2, _TOKENS, _number(config, 2, "hidden_size", "d_model")),
        "input_values": lambda: normal(2, 4000),
        "input_features": lambda: normal(
            2, _number(config, 80, "num_mel_bins"), 2 * _number(config, 32, "max_source_positions")
        ),
        "grid_thw": lambda: torch.tensor([[1, side, side]] * 2),
        "spatial_shapes": lambda: torch.tensor([[side, side]] * 2),
        "pixel_attention_mask": lambda: torch.ones(2, side * side, dtype=torch.long),
    }

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    def pixels(of: Any) -> Tensor:
        if packed or in_rows:
            return normal(2 * side * side, depth * a_patch) if packed else normal(2, side * side, a_patch)
        size = _number(of, 32, "image_size")
        return normal(2, _number(of, 3, "num_channels", "in_channels"), size, size)

    makers["pixel_values"] = lambda: pixels(config)
    makers["hidden_states"] = lambda: pixels(config) if packed else makers["inputs_embeds"]()
    required = [
        name for name, one in taken.items() if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    main: Any = getattr(inner, "main_input_name", None)
    names = list(dict.fromkeys([*([main] if main in taken or not required else []), *required]))
    if any(name not in makers for name in names):
        raise expected("a model that says what it takes", f"{type(inner).__name__}, which takes {names}", "data")
    batch = {name: makers[name]() for name in names}
    if "input_ids" in batch and hasattr(config, "vision_config") and hasattr(inner, "get_image_features"):
        batch["pixel_values"] = pixels(config.vision_config)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in taken:
        batch["decoder_input_ids"] = makers["decoder_input_ids"]()
    dtypes = (p.dtype for p in inner.parameters() if p.is_floating_point() and p.element_size() > 1)
    dtype = next(dtypes, torch.float32)
    return {key: value.to(device, dtype if value.is_floating_point() else None) for key, value in batch.items()}


def _number(config: Any, default: int, *names: str) -> int:
    """The first of some fields that a configuration has as a number, or the first of several."""
    for name in names:
        found = getattr(config, name, None)
        found = found[0] if isinstance(found, list | tuple) and found else found
        if isinstance(found, int):
            return found
    return default
