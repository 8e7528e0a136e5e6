"""Attention written out: the maps, values and heads of each block of a pass, and who may see whom, in float64."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.remedies.hosts import BY_NAME, TOKENS

HOSTS = ("bert", "vit", "gpt2", "llama")
CAUSAL = ("gpt2", "llama")
HEADS = 4


@dataclass(frozen=True)
class Parts:
    """Where things are in a block, by path: written down here anew, so that a slip in the package shows."""

    blocks: Callable[[Any], Any]
    values: str
    value_heads: int
    heads: str
    branch: str
    norms: tuple[str, str]


PARTS = {
    "bert": Parts(
        lambda model: model.encoder.layer,
        "attention.self.value",
        4,
        "attention.output.dense",
        "attention.output.dropout",
        ("attention.output.LayerNorm", "output.LayerNorm"),
    ),
    "vit": Parts(
        lambda model: model.layers,
        "attention.v_proj",
        4,
        "attention.o_proj",
        "attention",
        ("layernorm_before", "layernorm_after"),
    ),
    "gpt2": Parts(lambda model: model.transformer.h, "attn.c_attn", 4, "attn.c_proj", "attn", ("ln_1", "ln_2")),
    "llama": Parts(
        lambda model: model.model.layers,
        "self_attn.v_proj",
        2,
        "self_attn.o_proj",
        "self_attn",
        ("input_layernorm", "post_attention_layernorm"),
    ),
}


@dataclass
class Block:
    """What one block of a pass made.

    Args:
        stream: What entered it.
        values: (batch, tokens, value heads, head dim).
        heads: (batch, tokens, heads, head dim) as the output projection reads them.
        before: What the output projection gives.
        branch: The branch that is added to the stream, after any edit of it.
        read: What its norms read, after any edit of that.
        unread: The same before.
        map: (batch, heads, queries, keys).
    """

    stream: Tensor = field(default_factory=lambda: torch.empty(0))
    values: Tensor = field(default_factory=lambda: torch.empty(0))
    heads: Tensor = field(default_factory=lambda: torch.empty(0))
    before: Tensor = field(default_factory=lambda: torch.empty(0))
    branch: Tensor = field(default_factory=lambda: torch.empty(0))
    read: list[Tensor] = field(default_factory=list)
    unread: list[Tensor] = field(default_factory=list)
    map: Tensor = field(default_factory=lambda: torch.empty(0))

    def values_by_head(self) -> Tensor:
        """(batch, heads, tokens, head dim), each query head with the values it reads."""
        return self.values.repeat_interleave(HEADS // self.values.shape[2], dim=2).transpose(1, 2)


def exact(name: str, seed: int = 0) -> Any:
    """A tiny host in float64 that forms its maps."""
    model = BY_NAME[name].model(seed).double()
    model.set_attn_implementation("eager")
    return model


def exact_call(name: str, padded: str | None = None) -> tuple[dict[str, Any], Tensor]:
    """A batch as the model is called with it, and which of its tokens are real."""
    host = BY_NAME[name]
    inputs = host.inputs()
    if host.kind == "vision":
        return host.call(inputs.double()), torch.ones(2, 5, dtype=torch.bool)
    if padded is None:
        return host.call(inputs), torch.ones(2, TOKENS, dtype=torch.bool)
    place, lengths = torch.arange(TOKENS), torch.tensor([[TOKENS], [5]])
    real = place < lengths if padded == "right" else place >= TOKENS - lengths
    return host.call(inputs, real), real


def paddings(name: str) -> tuple[str | None, ...]:
    """The ways its batch may be padded."""
    return (None, *BY_NAME[name].paddings)


# In float64 Llama's own maps are NaN for tokens that see nothing but padding, and so is the plain model.
CASES = [(name, padded) for name in HOSTS for padded in paddings(name) if (name, padded) != ("llama", "left")]


def blocks_of(name: str, model: Any) -> list[Any]:
    """The blocks of a tiny host."""
    return list(PARTS[name].blocks(model))


@torch.no_grad()
def record(name: str, model: Any, call: dict[str, Any]) -> list[Block]:
    """Run a model, with whatever remedies it has, and write down what each block made."""
    parts, found = PARTS[name], []
    with ExitStack() as stack:
        for block in blocks_of(name, model):
            made = Block()
            found.append(made)
            _watch(parts, block, made, lambda handle: stack.callback(handle.remove))
        maps = model(**call, output_attentions=True).attentions
    for made, seen in zip(found, maps, strict=True):
        made.map = seen.double()
    return found


def _watch(parts: Parts, block: nn.Module, made: Block, keep: Callable[[Any], Any]) -> None:
    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        made.stream = args[0] if args else kwargs["hidden_states"]

    def values(module: nn.Module, args: Any, output: Tensor) -> None:
        width = parts.value_heads * 8
        made.values = output[..., -width:].unflatten(-1, (parts.value_heads, 8))

    def heads(module: nn.Module, args: Any) -> None:
        made.heads = args[0].unflatten(-1, (HEADS, 8))

    def before(module: nn.Module, args: Any, output: Tensor) -> None:
        made.before = output.clone()

    def after(module: nn.Module, args: Any, output: Any) -> None:
        made.branch = output if isinstance(output, Tensor) else output[0]

    keep(block.register_forward_pre_hook(enter, with_kwargs=True))
    keep(block.get_submodule(parts.values).register_forward_hook(values))
    keep(block.get_submodule(parts.heads).register_forward_pre_hook(heads))
    keep(block.get_submodule(parts.heads).register_forward_hook(before, prepend=True))
    keep(block.get_submodule(parts.branch).register_forward_hook(after))
    for path in parts.norms:
        norm = block.get_submodule(path)
        keep(norm.register_forward_pre_hook(lambda module, args: made.unread.append(args[0].clone()), prepend=True))
        keep(norm.register_forward_pre_hook(lambda module, args: made.read.append(args[0])))


def may_see(name: str, real: Tensor) -> Tensor:
    """(batch, queries, keys): who may see whom."""
    tokens = real.shape[1]
    seen = real[:, None, :].expand(-1, tokens, -1)
    return seen & torch.ones(tokens, tokens).tril().bool() if name in CAUSAL else seen


def uniform(seen: Tensor) -> Tensor:
    """Π: each row the same for all it may see."""
    return seen.double() / seen.sum(dim=-1, keepdim=True).clamp(min=1)


def near(got: Tensor, wanted: Tensor, real: Tensor | None = None, tolerance: float = 1e-11) -> None:
    """Refuse what differs at real tokens."""
    if real is not None:
        got, wanted = got[real], wanted[real]
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@torch.no_grad()
def set_all(name: str, model: Any, remedy: str, **values: float) -> list[dict[str, Tensor]]:
    """Give the parameters of a remedy random numbers of the given sizes; what they are, by block."""
    generator = torch.Generator().manual_seed(3)
    chosen = []
    for block in blocks_of(name, model):
        edit = getattr(block.unsmooth, remedy)
        chosen.append({})
        for key, size in values.items():
            parameter = getattr(edit, key)
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
            chosen[-1][key] = parameter.detach().clone()
    return chosen
