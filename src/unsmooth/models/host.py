"""What a host is: one family of Transformer blocks, known by class name.

So a model is recognised however it is wrapped, and without importing the library it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.registry import Registry

if TYPE_CHECKING:
    from unsmooth.models.value_projection import ValueProjection
    from unsmooth.models.wiring import Wiring

SITES: Mapping[str, str] = {
    "residual": "what a block hands on (post-norm: after its last norm); layer 0 enters the first block",
    "normed": "what attention reads",
    "attention": "output of the attention branch before it is added to the stream",
    "cross": "output of the cross-attention branch, which reads another stack, before it is added to the stream",
    "mid": "the stream between attention (and cross-attention) and MLP; absent where both run in parallel",
    "mlp": "output of the MLP branch before it is added to the stream",
}


@dataclass(frozen=True)
class Tap:
    """A tensor inside a block: what goes into, or comes out of, one of its modules.

    Args:
        module: Path of the module relative to the block.
        end: "input" (its first tensor argument) or "output" (its first tensor result).
        copied: Whether to hand on a copy, because the block changes the tensor in place afterwards.
        times: What the block multiplies it by before it is added: a number, or the path of a weight (dim,) or (1,), or
            "tanh" and that.
    """

    module: str
    end: Literal["input", "output"]
    copied: bool = False
    times: float | str = 1.0


def multiplier(
    block: nn.Module, times: float | str, read: Callable[[nn.Module, str], Tensor] = nn.Module.get_parameter
) -> float | Tensor:
    """What a branch is multiplied by before it is added: a number, or what the weight (dim,) or (1,) at a path holds.

    >>> block = nn.PReLU(init=0.5).requires_grad_(False)
    >>> multiplier(block, 0.1), float(multiplier(block, "weight")), round(float(multiplier(block, "tanh weight")), 4)
    (0.1, 0.5, 0.4621)
    """
    if not isinstance(times, str):
        return times
    path = times.removeprefix("tanh ")
    weight = read(block, path).flatten()
    return weight if path == times else weight.tanh()


@dataclass(frozen=True)
class Reads:
    """What a batch calls the tokens of a stack.

    Args:
        tokens: The field that becomes its tokens.
        mask: The field that marks those that are not padding; None where none can be, as images have none.
        each: Entries of that mask to a token.
        start: How many other tokens stand in front of them; None where they are all there are.
        beside: Whether tokens in front and behind are made of other inputs, and not put there to fill up.
        marked: The field that marks padding in what the model makes its own tokens of, as samples are.
    """

    tokens: str = "input_ids"
    mask: str | None = "attention_mask"
    each: int = 1
    start: int | None = None
    beside: bool = False
    marked: str | None = None


TEXT = Reads()
TARGET = Reads("decoder_input_ids", "decoder_attention_mask")
IMAGE = Reads("pixel_values", None)


@dataclass(frozen=True)
class Cross:
    """The cross-attention of a block: its queries are the block's own tokens, its values those of another stack.

    Args:
        module: Path, relative to the block, of the module inside which its map is formed.
        values: Reads its value and output weights off a block.
        output: The projection that ends its branch, as a path; "" where something comes after it.
    """

    module: str
    values: Callable[[nn.Module], ValueProjection]
    output: str = ""


# Blocks nobody has looked into yet: what calls them, and which others are in their stack.
_STACKS: WeakKeyDictionary[nn.Module, tuple[ref[nn.Module], list[ref[nn.Module]]]] = WeakKeyDictionary()


def expect_blocks(model: nn.Module, blocks: Iterable[nn.Module]) -> None:
    """Say what calls the blocks of one stack, for when somebody asks for their parts."""
    blocks = list(blocks)
    stack = ref(model), [ref(block) for block in blocks]
    for block in blocks:
        _STACKS[block] = stack


def expected_blocks(block: nn.Module) -> tuple[nn.Module | None, list[nn.Module]]:
    """What calls a block, where that is known, and the blocks of its stack."""
    model, stack = _STACKS.get(block, (None, []))
    return None if model is None else model(), [found for one in stack if (found := one()) is not None] or [block]


# Functions with names, so that what refers to a host can be pickled. What they look up is built on this file.
def _found_taps(block: nn.Module) -> Mapping[str, Tap]:
    from unsmooth.models.wire import found_taps

    return found_taps(block)


def _found_wiring(block: nn.Module) -> Wiring:
    from unsmooth.models.wire import found_wiring

    return found_wiring(block)


def _found_attention(block: nn.Module) -> str:
    from unsmooth.models.wire import found_attention

    return found_attention(block)


def _found_cross(block: nn.Module) -> Cross:
    from unsmooth.models.wire import found_cross

    return found_cross(block)


def _none(model: nn.Module) -> int:
    return 0


def _yes(block: nn.Module) -> bool:
    return True


def _not_told(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    return None


def _text(block: nn.Module) -> Reads:
    return TEXT


@dataclass(frozen=True)
class Host:
    """One family of Transformer blocks.

    Args:
        name: Short name, shown by ``unsmooth ls models``.
        blocks: Class names of the block, bare or with their module; a subclass matches too.
        example: What a user would call such a model, for the list.
        taps: Site name to `Tap` for one block, found unless given; "residual" is the block itself and needs none.
        prefix_tokens: Special tokens that the model itself puts in front (class, distillation, register).
        batch_first: Whether a block's tensors are (batch, tokens, dim) rather than (tokens, batch, dim).
        real_tokens: Reads a (batch, tokens) mask, True = real, off a block's call that has one.
        attention_module: Path, relative to the block, of the module inside which the attention map is formed.
        wiring: The parts of a block by path, for those who read its weights and for remedies, found unless given; None
            where they are not known.
        depth: How many block calls one forward pass makes.
        reads: What a batch calls the tokens of a block's stack, where that is all the model has.
        stage: Reads the number of a stage, from 0, off a block's path; None where width and tokens stay as they are.
        cross: The cross-attention of a block that has the site "cross".
    """

    name: str
    blocks: tuple[str, ...]
    example: str
    taps: Callable[[nn.Module], Mapping[str, Tap]] = _found_taps
    prefix_tokens: Callable[[nn.Module], int] = _none
    batch_first: Callable[[nn.Module], bool] = _yes
    real_tokens: Callable[[tuple[Any, ...], Mapping[str, Any]], Tensor | None] = _not_told
    attention_module: Callable[[nn.Module], str] | None = _found_attention
    wiring: Callable[[nn.Module], Wiring] | None = _found_wiring
    depth: Callable[[Mapping[str, nn.Module]], int] = len
    reads: Callable[[nn.Module], Reads] = _text
    stage: Callable[[str], int] | None = None
    cross: Callable[[nn.Module], Cross] = _found_cross

    def __reduce__(self) -> Any:
        # Copied and pickled by its name, as a class is: a saved model that refers to its host need not hold functions.
        if self.name in HOSTS and HOSTS[self.name] is self:
            return _registered, (self.name,)
        return Host, tuple(getattr(self, field.name) for field in fields(self))


def _registered(name: str) -> Host:
    return HOSTS[name]


def _accept(found: Any) -> tuple[str, Host]:
    """What an entry point may name: a host."""
    if not isinstance(found, Host):
        raise expected("an unsmooth.models.Host", repr(found), "the host itself")
    return found.name, found


HOSTS = Registry[Host]("host", group="unsmooth.hosts", accept=_accept)


def register(host: Host) -> Host:
    """Put one of our own hosts into the table."""
    return HOSTS.add(host.name, host)


def host_of(module: nn.Module) -> Host | None:
    """The host whose block `module` is, if any.

    Its bases are looked at too, nearest first, because FSDP2 and users subclass a block's class.
    """
    for base in type(module).__mro__:
        for host in HOSTS.values():
            if base.__name__ in host.blocks or f"{base.__module__}.{base.__qualname__}" in host.blocks:
                return host
    return None
