"""Where the blocks and sites of a network are: find them once, watch them as often as needed."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import nn

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.models.attention_maps import MapObserver, Missing, watch_attention
from unsmooth.models.host import HOSTS, IMAGE, SITES, TARGET, TEXT, Host, Reads, Tap, expect_blocks, host_of
from unsmooth.models.stacks import called_part, names_of, parts_of, pattern_of
from unsmooth.models.watch import CallObserver, Observer, Watch, first_input, first_output, watch_blocks

__all__ = [
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
        host: The family its blocks are of.
        blocks: Module path to block, in the order of the modules.
        stack: What the stack is called where the model has several, such as "encoder"; else nothing.
        part: The part of the model that holds this stack alone; layers are numbered anew in its forward passes too.
        seen_to_read: What a batch calls its tokens, where a pass has shown it.
        other_streams: Shapes of what its blocks change and hand on beside their tokens, where a pass has shown it.
        sites: The sites that every block has.
    """

    model: nn.Module
    host: Host
    blocks: Mapping[str, nn.Module]
    stack: str = ""
    part: nn.Module | None = None
    seen_to_read: Reads | None = None
    other_streams: tuple[str, ...] = ()
    sites: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        expect_blocks(self.model, self.blocks.values())
        present = set.intersection(*(set(self.host.taps(block)) for block in self.blocks.values()))
        object.__setattr__(self, "sites", tuple(site for site in SITES if site == "residual" or site in present))

    @property
    def entries(self) -> tuple[nn.Module, ...]:
        """The modules whose forward pass is a pass through the stack."""
        return (self.model,) if self.part is None or self.part is self.model else (self.model, self.part)

    @property
    def reads(self) -> Reads:
        """What a batch calls the tokens of this stack."""
        if self.seen_to_read is not None:
            return self.seen_to_read
        own = self.host.reads(next(iter(self.blocks.values())))
        if own == IMAGE and not self.stack:
            return replace(own, mask="token_mask")  # of the only stack there is
        return TARGET if own == TEXT and self.stack.rpartition(".")[2] == "decoder" else own

    @property
    def prefix_tokens(self) -> int:
        """Special tokens that the model itself puts in front."""
        return self.host.prefix_tokens(self.entries[-1])

    def stage(self, path: str) -> int | None:
        """The stage of the block at `path`, None where the host has no stages."""
        return None if self.host.stage is None else self.host.stage(path)

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
            if site not in self.sites:
                known = f"a site that {self.host.name} blocks have ({', '.join(self.sites)})"
                raise expected(known, repr(site), "another site")


def find_anatomy(model: nn.Module, blocks: str | None = None) -> Anatomy:
    """Find the Transformer blocks of `model`, by known block classes or by a pattern over module paths.

    Args:
        model: Any module.
        blocks: Pattern over ``model.named_modules()`` paths in which ``*`` stands for one path component,
            such as ``"encoder.layers.*"``. Where the modules found are blocks of a known host, all its sites
            are there; otherwise only the residual site is.

    Raises:
        UnsmoothError: There are no known blocks, or there is more than one stack of them.
    """
    if not isinstance(model, nn.Module):
        raise _no_module(model)
    if blocks is not None:
        return _by_pattern(model, blocks)
    stacks = find_stacks(model)
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
    if blocks is not None:
        return (_by_pattern(model, blocks),)
    found = _known_blocks(model)
    if not found:
        raise _no_blocks(model)
    if len(found) == 1:
        return (Anatomy(model, _one_host(model, found[0]), found[0]),)
    parts = parts_of([next(iter(blocks)) for blocks in found])
    return tuple(
        Anatomy(model, _one_host(model, blocks), blocks, stack=name, part=called_part(model, part))
        for blocks, part, name in zip(found, parts, names_of(parts), strict=True)
    )


def _no_module(given: Any) -> UnsmoothError:
    hint = "the .model inside it" if hasattr(given, "model") else "unsmooth.load(name) first"
    return expected("an nn.Module", type(given).__name__, hint)


def _known_blocks(model: nn.Module) -> list[dict[str, nn.Module]]:
    """Blocks of known hosts by path, stack by stack."""
    by_pattern: dict[str, dict[str, nn.Module]] = {}
    # Models have hundreds of modules of a dozen classes, and a class has one host.
    is_block: dict[type[nn.Module], bool] = {}
    for path, module in model.named_modules():
        if type(module) not in is_block:
            is_block[type(module)] = host_of(module) is not None
        if is_block[type(module)]:
            by_pattern.setdefault(pattern_of(path), {})[path] = module
    return list(by_pattern.values())


def _one_host(model: nn.Module, blocks: Mapping[str, nn.Module]) -> Host:
    hosts = {host.name: host for block in blocks.values() if (host := host_of(block))}
    if len(hosts) > 1:
        raise expected(
            f"blocks of one family in each stack of {type(model).__name__}",
            f"{' and '.join(hosts)} in {pattern_of(next(iter(blocks)))}",
            "a part of the model, or a blocks pattern that picks one family",
        )
    return next(iter(hosts.values()))


def _no_blocks(model: nn.Module) -> UnsmoothError:
    known = sorted({name.rpartition(".")[2] for host in HOSTS.values() for name in host.blocks})
    empty = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and not len(module)]
    aside = f" (its {empty[0]!r} is an empty list)" if empty else ""
    return UnsmoothError(
        f"Expected Transformer blocks in {type(model).__name__} but found none of {', '.join(known)}{aside}. "
        f'Try blocks="encoder.layers.*" with a path of this model, such as {_suggest_pattern(model)}.'
    )


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
        raise expected(
            f"modules that match blocks={pattern!r} in {type(model).__name__}",
            "none",
            f"a path of this model, such as {_suggest_pattern(model)}",
        )
    lists = {re.sub(r"\d+", "*", name.rpartition(".")[0]): None for name in found}
    if len(lists) > 1:
        each = [f"{one}.*".lstrip(".") for one in lists]
        raise expected(f"blocks of one stack at {pattern!r}", " and ".join(map(repr, each)), f"blocks={each[0]!r}")
    hosts = {host.name if (host := host_of(module)) else None for module in found.values()}
    if len(hosts) == 1 and hosts != {None}:
        return _within_a_stack(model, found)
    # Of blocks that a pattern picked, only the residual stream is looked at.
    unknown = Host("pattern", (), pattern, taps=lambda block: {}, attention_module=None, wiring=None)
    return Anatomy(model, unknown, found)


def _within_a_stack(model: nn.Module, blocks: Mapping[str, nn.Module]) -> Anatomy:
    """Known blocks that were picked by a pattern; they may lie in one of several stacks."""
    stacks = _known_blocks(model)
    parts = parts_of([next(iter(found)) for found in stacks])
    for found, part, name in zip(stacks, parts, names_of(parts), strict=True):
        if len(stacks) > 1 and set(blocks) <= set(found):
            return Anatomy(model, _one_host(model, blocks), blocks, stack=name, part=called_part(model, part))
    return Anatomy(model, _one_host(model, blocks), blocks)


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    # The model itself has the empty path, which "*" would match.
    return bool(name) and len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _suggest_pattern(model: nn.Module) -> str:
    """The longest list of modules is nearly always the stack of blocks."""
    lists = [
        (len(module), name)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1
    ]
    return repr(f"{max(lists)[1]}.*".lstrip(".")) if lists else "one printed by print(model)"
