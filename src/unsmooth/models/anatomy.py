"""Where the blocks and sites of a network are: find them once, watch them as often as needed."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Literal

from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.models.attention_maps import MapObserver, Missing, watch_attention
from unsmooth.models.host import HOSTS, IMAGE, SITES, TARGET, TEXT, Host, Reads, Tap, expect_blocks, host_of
from unsmooth.models.look import Stream, argument, real_tokens_in
from unsmooth.models.stacks import (
    Blocks,
    called_part,
    holding_attention,
    names_of,
    numbered,
    parts_of,
    pattern_of,
    proposed,
    width_of,
)
from unsmooth.models.watch import CallObserver, Observer, Watch, first_input, first_output, watch_blocks

ANY = "auto:any"
"""In place of a pattern: the longest list of blocks, whether they hold attention or not."""

__all__ = [
    "ANY",
    "HOSTS",
    "SITES",
    "Anatomy",
    "Host",
    "Observer",
    "Tap",
    "Watch",
    "find_anatomy",
    "find_stacks",
    "first_input",
    "first_output",
]


@dataclass(frozen=True)
class Anatomy:
    """A model with the blocks of one stack found.

    Args:
        model: The model as it is called; layers are numbered anew in each of its forward passes.
        host: The family its blocks are of; one without block classes where that is not known.
        blocks: Module path to block, in the order of the modules.
        stack: What the stack is called where the model has several, such as "encoder"; else nothing.
        part: The part of the model that holds this stack alone; layers are numbered anew in its forward passes too.
        seen_to_read: What a batch calls its tokens, where a pass has shown it.
        stream: How its tokens pass through the blocks, where a pass has shown it.
        told: What a reader must know of what was found.
        proposed: Whether the blocks were found by what they are, and not by somebody's pattern.
    """

    model: nn.Module
    host: Host
    blocks: Mapping[str, nn.Module]
    stack: str = ""
    part: nn.Module | None = None
    seen_to_read: Reads | None = None
    stream: Stream | None = None
    told: tuple[str, ...] = ()
    proposed: bool = True

    def __post_init__(self) -> None:
        expect_blocks(self.model, self.blocks.values())

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that every block has; those inside blocks are found when somebody first asks."""
        if self.flow.beside:
            return ("residual",)
        present = set.intersection(*(set(self.host.taps(block)) for block in self.blocks.values()))
        return tuple(site for site in SITES if site == "residual" or site in present)

    @property
    def is_open(self) -> bool:
        """Whether its blocks could not be looked into yet: no pass but one on the user's data reaches them."""
        from unsmooth.models.wire import unreached  # which is built on this file

        return any(map(unreached, self.blocks.values()))

    def having(self, sites: Sequence[str]) -> list[str]:
        """Those of some sites that the blocks have; nothing is looked for inside them where nobody asks for it."""
        return [site for site in sites if site == "residual" or site in self.sites]

    @property
    def entries(self) -> tuple[nn.Module, ...]:
        """The modules whose forward pass is a pass through the stack."""
        return (self.model,) if self.part is None or self.part is self.model else (self.model, self.part)

    @property
    def reads(self) -> Reads:
        """What a batch calls the tokens of this stack."""
        if self.seen_to_read is not None:
            return self.seen_to_read
        own = self.host.reads(next(iter(self.blocks.values()))) if self.is_known else self._declared
        if own == IMAGE and not self.stack:
            return replace(own, mask="token_mask")  # of the only stack there is
        if not self.is_known:
            return own
        return TARGET if own == TEXT and self.stack.rpartition(".")[2] == "decoder" else own

    @property
    def _declared(self) -> Reads:
        """What the part of a transformers model says that it reads which is nearest to the blocks."""
        first, found, target = next(iter(self.blocks.values())), "input_ids", False
        path = next((name for name, module in self.model.named_modules() if module is first), "")
        module = self.model
        for step in path.split("."):
            name = getattr(module, "main_input_name", found)
            target |= step == "decoder" and "decoder_input_ids" in signature(module.forward).parameters
            name = name[0] if isinstance(name, list) and name else name  # of several, as OneFormer has
            found, module = name if isinstance(name, str) else found, module.get_submodule(step)
        return TARGET if target else {"input_ids": TEXT, "pixel_values": IMAGE}.get(found, Reads(found))

    @property
    def is_known(self) -> bool:
        """Whether its blocks are of a known family."""
        return bool(self.host.blocks)

    @property
    def batch_first(self) -> bool:
        """Whether tensors inside its blocks are (batch, tokens, dim) rather than (tokens, batch, dim)."""
        if self.stream is not None:
            return self.stream.axes != "NBD"
        return self.host.batch_first(next(iter(self.blocks.values())))

    @property
    def flow(self) -> Stream:
        """How its tokens pass through its blocks, as far as is known."""
        return self.stream or Stream("BND" if self.batch_first else "NBD")

    def mask_handed(self, block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
        """True for real tokens, by a mask among the arguments with which a block is called; None where none is."""
        given = argument(args, kwargs, self.flow.enters) if self.flow.enters else None
        stream = given if isinstance(given, Tensor) else first_input(args, kwargs)
        if not self.flow.fits(stream):
            return None
        return real_tokens_in(block, args, kwargs, self.flow.laid_out(stream).shape[:2])

    @property
    def prefix_tokens(self) -> int:
        """Special tokens that the model itself puts in front."""
        return self.host.prefix_tokens(self.entries[-1]) if self.stream is None else self.stream.prefix

    def stage(self, path: str) -> int | None:
        """The stage of the block at `path`, None where there are no stages."""
        if self.stream is not None:
            return self.stream.stages.get(path)
        return None if self.host.stage is None else self.host.stage(path)

    def ends_of(self, path: str) -> tuple[nn.Module, nn.Module]:
        """What is called first and last of the block at `path`: itself, unless it is a mere list."""
        block, parts = self.blocks[path], self.flow.parts.get(path)
        return (block, block) if parts is None else (block.get_submodule(parts[0]), block.get_submodule(parts[1]))

    def watch(
        self,
        observer: Observer,
        sites: Sequence[str] = ("residual",),
        on_error: Callable[[Exception], None] | None = None,
        on_call: CallObserver | None = None,
    ) -> AbstractContextManager[Watch]:
        """Call `observer` for every tensor at `sites` while the context is open; hooks never outlive it.

        Layers are numbered by call order from 1 in each forward pass of `model`, so a block that is called
        several times (ALBERT) is as many layers. Layer 0 is the input of the first block called. What
        torch.compile has compiled runs uncompiled meanwhile, or the hooks would not be called. Only passes of the
        thread that opened the context are seen; those of others run as if nobody watched. Errors come out of
        the forward pass, or go to `on_error`. `on_call` is shown the path and the arguments of each block call.
        """
        self.check_sites(sites)
        return watch_blocks(self, observer, sites, on_error, on_call)

    def watch_attention(
        self,
        observer: MapObserver,
        on_missing: Missing | None = None,
        site: Literal["attention", "cross"] = "attention",
    ) -> AbstractContextManager[None]:
        """Call `observer` with the attention map of every block call; see `watch_attention`."""
        return watch_attention(self, observer, on_missing, site)

    def check_sites(self, sites: Sequence[str]) -> None:
        """Refuse a site that does not exist, or not in this model."""
        for site in sites:
            if site not in SITES:
                raise unknown_name("site", site, SITES)
            if not self.having([site]):
                known = f"a site that {self.host.name} blocks have ({', '.join(self.sites)})"
                raise expected(known, repr(site), "another site")


def find_anatomy(model: nn.Module, blocks: str | None = None) -> Anatomy:
    """Find the Transformer blocks of `model`, by what its modules hold or by a pattern over module paths.

    Args:
        model: Any module.
        blocks: Pattern over ``model.named_modules()`` paths in which ``*`` stands for one path component,
            such as ``"encoder.layers.*"``; ``"auto:any"`` for the longest list of blocks, with attention or without.
            Where the modules found are blocks of a known host, all its sites are there; otherwise only the residual
            site is.

    Raises:
        UnsmoothError: There are no blocks that hold attention, or there is more than one stack of them.
    """
    stacks = find_stacks(model, blocks)
    if len(stacks) > 1:
        raise _several_stacks(model, stacks)
    return stacks[0]


def find_stacks(model: nn.Module, blocks: str | None = None) -> tuple[Anatomy, ...]:
    """Find every stack of Transformer blocks in `model`, in the order of the modules; see `find_anatomy`.

    A stack is known by the path that its blocks share. Where there are several, each is called what its path has to
    itself: "encoder" and "decoder", "text" and "vision". A pattern finds one.

    Example:
        >>> model = nn.Transformer(8, 2, num_encoder_layers=2, num_decoder_layers=3, dim_feedforward=16)
        >>> [(one.stack, one.host.name, len(one.blocks)) for one in find_stacks(model)]
        [('encoder', 'torch_encoder', 2), ('decoder', 'torch_decoder', 3)]
    """
    if not isinstance(model, nn.Module):
        raise _no_module(model)
    if blocks is not None and blocks != ANY:
        return (_by_pattern(model, blocks),)
    found = _all_blocks(model) if blocks is None else _longest(model)
    if not found:
        raise _no_blocks(model)
    return named(model, found)


def named(model: nn.Module, found: Sequence[Blocks]) -> tuple[Anatomy, ...]:
    """Stacks of these blocks, called what tells them apart."""
    if len(found) == 1:
        return (Anatomy(model, _host(found[0]), found[0]),)
    parts = parts_of([next(iter(blocks)) for blocks in found])
    return tuple(
        Anatomy(model, _host(blocks), blocks, stack=name, part=called_part(model, part))
        for blocks, part, name in zip(found, parts, names_of(parts), strict=True)
    )


def _no_module(given: Any) -> UnsmoothError:
    hint = "the .model inside it" if hasattr(given, "model") else "unsmooth.load(name) first"
    return expected("an nn.Module", type(given).__name__, hint)


def _all_blocks(model: nn.Module) -> list[Blocks]:
    """Blocks by path, stack by stack: those of known hosts, and what beside them is built like stacks."""
    known: dict[str, Blocks] = {}
    # Models have hundreds of modules of a dozen classes, and a class has one host.
    is_block: dict[type[nn.Module], bool] = {}
    order: dict[str, int] = {}
    for path, module in model.named_modules():
        order[path] = len(order)
        if type(module) not in is_block:
            is_block[type(module)] = host_of(module) is not None
        if is_block[type(module)]:
            known.setdefault(pattern_of(path), {})[path] = module
    taken = [path for blocks in known.values() for path in blocks]
    for blocks in proposed(model):
        own = pattern_of(next(iter(blocks)))
        if own in known:
            known[own] = blocks | known[own]
        elif not any(
            f"{one}.".startswith(f"{path}.") or path.startswith(f"{one}.") for path in taken for one in blocks
        ):
            known[own] = blocks
    return sorted(known.values(), key=lambda blocks: order[next(iter(blocks))])


def _longest(model: nn.Module) -> list[Blocks]:
    """The longest list of blocks, whatever they are; the outermost of several."""
    found = proposed(model, any_kind=True)
    return [max(found, key=len)] if found else []


def _host(blocks: Mapping[str, nn.Module]) -> Host:
    """The family of the blocks, or one of which nothing is known where they are of none, or of several."""
    hosts = [host_of(block) for block in blocks.values()]
    stages = pattern_of(next(iter(blocks))).count("*") > 1 and len({*map(width_of, blocks.values())}) > 1
    if hosts[0] is not None and all(host is hosts[0] for host in hosts) and (hosts[0].stage or not stages):
        return hosts[0]
    kinds = dict.fromkeys(type(block).__name__ for block in blocks.values())
    return Host(" and ".join(kinds), (), "")


def _no_blocks(model: nn.Module) -> UnsmoothError:
    empty = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and not len(module)]
    aside = f" (its {empty[0]!r} is an empty list)" if empty else ""
    got = "none: its attention is in no list of blocks" if holding_attention(model) else "none: it has no attention"
    return expected(f"Transformer blocks in {type(model).__name__}", f"{got}{aside}", _suggestions(model))


def _several_stacks(model: nn.Module, stacks: Sequence[Anatomy]) -> UnsmoothError:
    patterns = [pattern_of(next(iter(stack.blocks))) for stack in stacks]
    return expected(
        f"one stack of Transformer blocks in {type(model).__name__}",
        f"{len(stacks)} ({', '.join(patterns)}), whose layers cannot be counted as one depth",
        f"blocks={patterns[0]!r}, or a part of the model such as model.{patterns[0].partition('.')[0]}",
    )


def _by_pattern(model: nn.Module, pattern: str) -> Anatomy:
    found = {name: module for name, module in model.named_modules() if _matches(name, pattern)}
    if not found:
        raise expected(f"modules that match blocks={pattern!r} in {type(model).__name__}", "none", _suggestions(model))
    lists = {re.sub(r"\d+", "*", name.rpartition(".")[0]): None for name in found}
    if len(lists) > 1:
        each = [f"{one}.*".lstrip(".") for one in lists]
        raise expected(f"blocks of one stack at {pattern!r}", " and ".join(map(repr, each)), f"blocks={each[0]!r}")
    host = _host(found)
    return _within_a_stack(model, found) if host.blocks else Anatomy(model, host, found, proposed=False)


def _within_a_stack(model: nn.Module, blocks: Mapping[str, nn.Module]) -> Anatomy:
    """Known blocks that were picked by a pattern; they may lie in one of several stacks."""
    stacks = find_stacks(model)
    within = next((one for one in stacks if one.stack and blocks.keys() <= one.blocks.keys()), None)
    return Anatomy(model, _host(blocks), blocks) if within is None else replace(within, blocks=blocks)


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    # The model itself has the empty path, which "*" would match.
    return bool(name) and len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _suggestions(model: nn.Module) -> str:
    """The calls to try: the longest lists of modules are nearly always the stacks of blocks."""
    lists = {pattern: len(blocks) for pattern, blocks in numbered(model).items() if len(blocks) > 1}
    nearest = sorted(lists, key=lambda pattern: -lists[pattern])[:2]
    if not nearest:
        return "a model with a list of blocks, or blocks with a path that print(model) shows"
    return (
        f"blocks={ANY!r} for its longest list, attention or not, or {' or '.join(f'blocks={it!r}' for it in nearest)}"
    )
