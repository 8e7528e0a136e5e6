"""One call of a block, run again by itself and seen from inside: its stream, its linear maps, its attention maps.

The pass of a model only keeps what each kind of block was called with. The block is then run again on that, as it is,
or as a copy: in float32 where its weights are half precision, and with gates that a fresh model has at zero, and other
weights that are all one number, set to different ones, so that every part of it shows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from unsmooth.models.hooks import Hooks, aside, uncompiled, whole_sequences
from unsmooth.models.map_of_call import map_of_call, multi_head_signature
from unsmooth.models.remedied import HOME
from unsmooth.models.watch import find_input, find_output, with_first_input

# What a rounded sum may differ from the exact one by, relative to the stream and to the branch.
OF_STREAM, OF_BRANCH = 1e-6, 1e-5
_MULTIPLY = frozenset({"mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"})


@dataclass(frozen=True)
class BlockCall:
    """What a block was called with, and gave, copied before anything changed it."""

    block: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def kind_of(block: nn.Module) -> Hashable:
    """What blocks of one wiring share: class, tree of modules, shapes of their weights, and what they say in words.

    >>> kind_of(nn.Linear(2, 2)) == kind_of(nn.Linear(2, 2)), kind_of(nn.Linear(2, 2)) == kind_of(nn.Linear(2, 3))
    (True, False)
    """
    tree = tuple(
        (
            path,
            _class_of(module),
            tuple((name, None if p is None else p.shape) for name, p in module._parameters.items()),
        )
        for path, module in block.named_modules()
        if path.partition(".")[0] != HOME and not path.endswith(("_attn.values", "_attn.heads"))
    )
    said = {name: value for name, value in vars(block).items() if isinstance(value, bool | float | str)}
    return tree, tuple(sorted((n, v) for n, v in said.items() if n != "training" and "drop" not in n))


def _class_of(module: nn.Module) -> type[nn.Module]:
    """Its class, that of torch's own attention also while that is opened for edits."""
    return nn.MultiheadAttention if isinstance(module, nn.MultiheadAttention) else type(module)


def calls_of(
    blocks: Iterable[nn.Module], run: Callable[[], object], key: Callable[[nn.Module], Hashable] = kind_of
) -> tuple[dict[Hashable, BlockCall], str]:
    """The first call of one block of each kind in a pass that `run` makes, and what it says of those that it lacks.

    A stream of zeros, as decoders of queries begin with, shows no sums: then it is the first with another.
    """
    kinds: dict[Hashable, list[nn.Module]] = {}
    for block in blocks:
        kinds.setdefault(key(block), []).append(block)
    found: dict[Hashable, BlockCall] = {}
    given: dict[Hashable, BlockCall] = {}

    def enter(module: nn.Module, args: Any, kwargs: Any, kind: Hashable) -> None:
        if kind not in found or not _shows_sums(found[kind]):
            given[kind] = BlockCall(module, tree_map(_kept, args), tree_map(_kept, dict(kwargs)))

    def leave(module: nn.Module, args: Any, output: Any, kind: Hashable) -> None:
        if kind in given:  # a call that raised is none
            found[kind] = given.pop(kind)

    with Hooks() as hook:
        for kind, same_kind in kinds.items():
            for block in same_kind:
                hook(block.register_forward_pre_hook, partial(enter, kind=kind), with_kwargs=True)
                hook(block.register_forward_hook, partial(leave, kind=kind))
        said = run()
    return found, f" ({said})" if isinstance(said, str) else ""


def _shows_sums(call: BlockCall) -> bool:
    stream = find_input(call.args, call.kwargs)
    return stream is None or bool(stream.any())


def _kept(value: Any) -> Any:
    """A copy that the model does not change later; caches are copied whole, whatever they are."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if "Cache" in type(value).__name__:
        return copy.deepcopy(value)
    return value


@dataclass(frozen=True)
class Place:
    """Where a tensor was seen: what a module was given, or what it returned, as the how-manieth event."""

    module: str
    end: str
    order: int
    held: Tensor


@dataclass(eq=False)
class Value:
    """A tensor of the stream's shape, wherever in the block it was seen."""

    tensor: Tensor
    places: list[Place] = field(default_factory=list)

    @property
    def first(self) -> int:
        """When it was seen first."""
        return min((place.order for place in self.places), default=-1)


@dataclass(frozen=True)
class ModuleCall:
    """A call of a module inside the block: when, what tensor it was given, what tensor it returned."""

    path: str
    module: nn.Module
    began: int
    ended: int
    given: Tensor
    gave: Tensor


@dataclass(frozen=True)
class MapCall:
    """A call of a function that makes an attention map (..., queries, keys), and the modules it was made in.

    Args:
        order: When.
        inside: Paths of the modules that were running, outermost first.
        maps: The map.
        scale: What queries times keys are multiplied by, where the call says so.
        value: What torch's own attention was given for values (batch, tokens, dim).
    """

    order: int
    inside: tuple[str, ...]
    maps: Tensor
    scale: float | None
    value: Tensor | None


@dataclass(frozen=True)
class DropoutCall:
    """A call of the dropout function: when, in which modules, on what, and the share that it drops in training."""

    order: int
    inside: tuple[str, ...]
    given: Tensor
    share: float


@dataclass(frozen=True)
class Product:
    """Two tensors that were multiplied, number by number, after an attention map was made."""

    order: int
    factors: tuple[Tensor, Tensor]
    gave: Tensor


@dataclass
class Record:
    """Everything that was seen of one call of a block.

    Args:
        block: The block that ran, which may be a copy.
        stream: What went in.
        output: What came out.
        others: Further tensors that the block was given.
        values: Tensors of the stream's shape, each once, in the order in which they were seen.
        calls: Calls of modules with one tensor in and one out, in the order in which they ended.
        maps: Attention maps.
        dropouts: Dropout that is no module.
        times: How often each module was called.
        products: Products of tensors after the first attention map.
    """

    block: nn.Module
    stream: Value
    output: Value
    others: list[Tensor]
    values: list[Value]
    calls: list[ModuleCall]
    maps: list[MapCall]
    dropouts: list[DropoutCall]
    times: dict[str, int]
    products: list[Product] = field(default_factory=list)

    def find(self, tensor: Tensor) -> Value | None:
        """The value with these numbers, if any."""
        return next((one for one in self.values if same(one.tensor, tensor)), None)

    def called_once(self, path: str) -> bool:
        """Whether a hook on the module is called once in a call of the block."""
        return self.times.get(path) == 1


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers, as far as rounding can tell."""
    if a.shape != b.shape or not a.numel() or a.dtype.is_floating_point != b.dtype.is_floating_point:
        return False
    if a.numel() > 64:  # most are told apart by a few numbers
        step = a.numel() // 16
        if not torch.allclose(a.flatten()[::step], b.flatten()[::step], rtol=1e-4, atol=1e-4 * float(b.abs().max())):
            return False
    return bool((a - b).abs().max() <= OF_STREAM * b.abs().max())


def record(call: BlockCall, *, loud: bool = False) -> Record:
    """Run a block again, on what it was called with.

    Args:
        call: Its call.
        loud: Whether weights that hold next to nothing are made larger, for gates that training has left near zero.
    """
    training = [module for module in call.block.modules() if module.training]
    for module in training:
        module.training = False
    try:
        return _recorded(call, _shown(call.block, loud))
    finally:
        for module in training:
            module.training = True


def hides_later(call: BlockCall, axis: int = 1) -> bool:
    """Whether tokens see no later ones in a call like this: where the second half is another, the first stays."""
    block, gave = _shown(call.block, loud=False), list[Tensor | None]()
    training = [module for module in block.modules() if module.training]
    try:
        for module in training:
            module.training = False
        for changed in (False, True):
            args, kwargs = _given(call, block)
            stream = find_input(args, kwargs)
            if stream is None or stream.ndim != 3:
                return False
            if changed:
                first, second = stream.tensor_split(2, axis)
                args, kwargs = with_first_input(args, kwargs, torch.cat([first, 1.0 - second], axis))
            off = torch.autocast(stream.device.type, enabled=False)
            with off, aside(), torch.no_grad(), uncompiled(block), whole_sequences(block):
                gave.append(find_output(block(*args, **kwargs)))
    finally:
        for module in training:
            module.training = True
    one, two = (x if x is None else x.tensor_split(2, axis)[0] for x in gave)
    return one is not None and two is not None and bool((one - two).abs().max() <= OF_BRANCH * one.abs().max())


def _given(call: BlockCall, block: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a block was called with, copied, in the precision of a block that may be a copy."""
    exact = next((p.dtype for p in block.parameters() if p.dtype.is_floating_point), torch.float32)

    def cast(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
            return value
        value = value.to(exact) if value.dtype in (torch.bfloat16, torch.float16) else value
        return value.nan_to_num(0.0, torch.inf, -torch.inf)

    return tree_map(cast, tree_map(_kept, call.args)), tree_map(cast, tree_map(_kept, dict(call.kwargs)))


def _recorded(call: BlockCall, block: nn.Module) -> Record:
    try:
        return _run(block, *_of_two(*_given(call, block)))
    except Exception:  # whatever a block says to a part of its batch
        return _run(block, *_given(call, block))


def _of_two(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The first two sequences of a larger batch, which show as much and take less room; all that are in one row."""
    stream = find_input(args, kwargs)
    batch = 0 if stream is None or stream.ndim < 3 else stream.shape[0]

    def cut(value: Any) -> Any:
        return value[:2] if isinstance(value, Tensor) and value.ndim and value.shape[0] == batch > 2 else value

    return tree_map(cut, args), tree_map(cut, kwargs)


def _shown(block: nn.Module, loud: bool) -> nn.Module:
    """The block itself, or a copy in which every part of it shows."""
    weights = [p for p in block.parameters() if p.dtype.is_floating_point]
    half = any(p.dtype in (torch.bfloat16, torch.float16) for p in weights)
    plain = [p for p in weights if not p.is_meta and type(p) in (Tensor, nn.Parameter)]
    odd = any(_is_one_number(p) or not bool(p.isfinite().all()) for p in plain)
    if not (half or loud or odd):
        return block
    try:
        shown = copy.deepcopy(block)
    except Exception:  # what is offloaded or sharded cannot be copied, and most of it shows as it is
        if half or loud:
            raise
        return block
    if half:
        shown = shown.float()
    with torch.no_grad():
        for number, weight in enumerate(p for p in shown.parameters() if type(p) in (Tensor, nn.Parameter)):
            if not weight.dtype.is_floating_point:
                continue
            weight.nan_to_num_(0.0, 0.0, 0.0)
            if _is_one_number(weight):
                wave = torch.arange(weight.numel(), device=weight.device, dtype=torch.float64)
                wave = (1.7 * wave + 0.3 * (wave / 7).floor() ** 2 + number).sin().reshape(weight.shape)
                middle = float(weight.flatten()[0])
                small = 0.5 if abs(middle) < 0.1 and weight.ndim < 2 else 0.0
                weight.copy_(middle + small + 0.3 * wave)
            elif loud and weight.ndim < 2:
                weight.div_(weight.abs().max())
            elif loud:
                weight.div_(weight.std() * weight.shape[-1] ** 0.5)
    return shown


def _is_one_number(weight: Tensor) -> bool:
    """As fresh norms, biases and gates are; a single number is one where it is too small to show."""
    if weight.is_meta or not weight.numel() or type(weight) not in (Tensor, nn.Parameter):
        return False
    first = weight.flatten()[0]
    if weight.numel() == 1:
        return bool(first.abs() < 0.1)
    return bool((weight.flatten()[:8] == first).all()) and bool((weight == first).all())


class _Eyes(TorchFunctionMode):
    """Sees every torch function that is called inside the block; keeps the attention maps."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = 0
        self.inside: list[str] = []
        self.found: list[MapCall] = []
        self.dropouts: list[DropoutCall] = []
        self.products: list[Product] = []

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        maps = map_of_call(func, args, kwargs)
        if maps is not None:
            scale = kwargs.get("scale") if func is nn.functional.scaled_dot_product_attention else None
            value = None
            if func is nn.functional.multi_head_attention_forward:
                value = multi_head_signature().bind(*args, **kwargs).arguments["value"].transpose(0, 1).clone()
            self.found.append(MapCall(self.tick(), tuple(self.inside), maps, scale, value))
        elif func is nn.functional.dropout:
            share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            given = args[0] if args else kwargs["input"]
            self.dropouts.append(DropoutCall(self.tick(), tuple(self.inside), given.clone(), float(share)))
        if not self.found or getattr(func, "__name__", "") not in _MULTIPLY or len(args) < 2:
            return func(*args, **kwargs)
        factors = tuple(one.clone() if isinstance(one, Tensor) else None for one in args[:2])
        gave = func(*args, **kwargs)
        if factors[0] is not None and factors[1] is not None and isinstance(gave, Tensor):
            self.products.append(Product(self.tick(), (factors[0], factors[1]), gave.clone()))
        return gave


def _run(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Record:
    stream = find_input(args, kwargs)
    assert stream is not None, "a block is called with a tensor"
    eyes, values, calls = _Eyes(), [Value(_in_batch(stream.clone(), stream))], list[ModuleCall]()
    began: list[tuple[int, Tensor | None]] = []
    times: dict[str, int] = {}
    shape = values[0].tensor.shape

    def see(tensor: Tensor | None, module: str, end: str, order: int) -> Tensor | None:
        if tensor is None or not tensor.dtype.is_floating_point:
            return None
        shown = _in_batch(tensor.clone(), stream)
        if shown.ndim == 2 and shown.shape[-1] == shape[-1] and shown.numel() == stream.numel():
            shown = shown.reshape(shape)  # all tokens in one row, as some blocks run their MLP
        if shown.shape != shape:
            return shown
        value = next((one for one in values if same(one.tensor, shown)), None)
        if value is None:
            values.append(value := Value(shown))
        value.places.append(Place(module, end, order, tensor))
        return value.tensor

    def enter(module: nn.Module, args: Any, kwargs: Any, path: str) -> None:
        eyes.inside.append(path)
        order = eyes.tick()
        began.append((order, see(find_input(args, kwargs), path, "input", order)))

    def leave(module: nn.Module, args: Any, output: Any, path: str) -> None:
        eyes.inside.pop()
        order, given = began.pop()
        times[path] = times.get(path, 0) + 1
        gave = see(find_output(output), path, "output", eyes.tick())
        if given is not None and gave is not None:
            calls.append(ModuleCall(path, module, order, eyes.clock, given, gave))

    off = torch.autocast(stream.device.type, enabled=False)
    with off, aside(), torch.no_grad(), uncompiled(block), whole_sequences(block), Hooks() as hook:
        for path, module in block.named_modules():
            if path and path.partition(".")[0] != HOME:
                hook(module.register_forward_pre_hook, partial(enter, path=path), with_kwargs=True)
                hook(module.register_forward_hook, partial(leave, path=path))
        with eyes:
            gave = find_output(block(*args, **kwargs))
    assert gave is not None, "a block returns a tensor"
    gave = _in_batch(gave, stream)
    output = next((one for one in values if same(one.tensor, gave)), None) or Value(gave)
    if output.tensor is gave:
        values.append(output)
    others = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor) and one is not stream]
    maps = [*_of_rows(eyes.found, shape[1])] if shape[0] == 1 and len(shape) == 3 else eyes.found
    return Record(block, values[0], output, others, values, calls, maps, eyes.dropouts, times, eyes.products)


def _in_batch(tensor: Tensor, stream: Tensor) -> Tensor:
    """What is (tokens, ...) where the stream is (tokens, dim), several sequences in one row, as a batch of one row."""
    return tensor[None] if stream.ndim == tensor.ndim == 2 and len(stream) == len(tensor) else tensor


def _of_rows(maps: list[MapCall], tokens: int) -> Iterator[MapCall]:
    """Maps of sequences in one row that were made one after the other, as one map of the row."""
    for _, group in groupby(maps, key=lambda one: one.inside):
        some = list(group)
        whole = joined_maps([one.maps for one in some], tokens)
        yield from some if whole is None else [replace(some[0], maps=whole)]


def joined_maps(maps: Sequence[Tensor], tokens: int) -> Tensor | None:
    """Maps (1, heads, n, n) of sequences that make up a row of so many tokens, as the map of that row.

    >>> joined_maps([torch.ones(1, 1, 1, 1), torch.full((1, 1, 2, 2), 0.5)], 3)[0, 0].tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.5, 0.5]]
    """
    square = all(one.ndim == 4 and len(one) == 1 and one.shape[-1] == one.shape[-2] for one in maps)
    if len(maps) < 2 or not square or sum(one.shape[-1] for one in maps) != tokens:
        return None
    heads = zip(*(one[0] for one in maps), strict=True)
    return torch.stack([torch.block_diag(*of_head) for of_head in heads])[None]  # type: ignore[no-untyped-call]
