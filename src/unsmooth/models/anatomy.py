"""Where the blocks and sites of a network are: find them once, watch them as often as needed."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from torch import nn

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.models.attention_maps import MapObserver, Missing, watch_attention_of
from unsmooth.models.host import HOSTS, SITES, Host, Tap, host_of
from unsmooth.models.watch import Observer, Watch, first_input, first_output, watch_blocks

__all__ = [
    "HOSTS",
    "SITES",
    "Anatomy",
    "Host",
    "Observer",
    "Tap",
    "Watch",
    "find_anatomy",
    "first_input",
    "first_output",
]


@dataclass(frozen=True)
class Anatomy:
    """A model with its blocks found.

    Args:
        model: The model as it is called; layers are numbered anew in each of its forward passes.
        host: The family its blocks are of.
        blocks: Module path to block, in the order of the modules.
        sites: The sites that every block has.
    """

    model: nn.Module
    host: Host
    blocks: Mapping[str, nn.Module]
    sites: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        present = set.intersection(*(set(self.host.taps(block)) for block in self.blocks.values()))
        object.__setattr__(self, "sites", tuple(site for site in SITES if site == "residual" or site in present))

    def watch(self, observer: Observer, sites: Sequence[str] = ("residual",)) -> AbstractContextManager[Watch]:
        """Call `observer` for every tensor at `sites` while the context is open; hooks never outlive it.

        Layers are numbered by call order from 1 in each forward pass of `model`, so a block that is called
        several times (ALBERT) is as many layers. Layer 0 is the input of the first block called. What
        torch.compile has compiled runs uncompiled meanwhile, or the hooks would not be called.
        """
        self.check_sites(sites)
        return watch_blocks(self.model, self.host, self.blocks, observer, sites)

    def watch_attention(self, observer: MapObserver, on_missing: Missing | None = None) -> AbstractContextManager[None]:
        """Call `observer` with the attention map of every block call; see `watch_attention`."""
        return watch_attention_of(self.model, self.host, self.blocks, observer, on_missing)

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
        raise expected("an nn.Module", type(model).__name__, "unsmooth.load(name) first")
    if blocks is not None:
        return _by_pattern(model, blocks)
    hosts = {name: host for name, module in model.named_modules() if (host := host_of(module))}
    if not hosts:
        raise _no_blocks(model)
    stacks = list(dict.fromkeys(_stack(name) for name in hosts))
    if len(stacks) > 1 or len({host.name for host in hosts.values()}) > 1:
        raise _several_stacks(model, stacks)
    return Anatomy(model, next(iter(hosts.values())), {name: model.get_submodule(name) for name in hosts})


def _stack(path: str) -> str:
    """The pattern that a block shares with its neighbours.

    >>> _stack("encoder.layer.11"), _stack("encoder.albert_layer_groups.0.albert_layers.0")
    ('encoder.layer.*', 'encoder.albert_layer_groups.*.albert_layers.*')
    """
    return re.sub(r"(^|(?<=\.))\d+(?=\.|$)", "*", path)


def _no_blocks(model: nn.Module) -> UnsmoothError:
    known = sorted({name.rpartition(".")[2] for host in HOSTS.values() for name in host.blocks})
    empty = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and not len(module)]
    aside = f" (its {empty[0]!r} is an empty list)" if empty else ""
    return UnsmoothError(
        f"Expected Transformer blocks in {type(model).__name__} but found none of {', '.join(known)}{aside}. "
        f'Try blocks="encoder.layers.*" with a path of this model, such as {_suggest_pattern(model)}.'
    )


def _several_stacks(model: nn.Module, stacks: Sequence[str]) -> UnsmoothError:
    part = stacks[0].partition(".")[0]
    return expected(
        f"one stack of Transformer blocks in {type(model).__name__}",
        f"{len(stacks)} ({', '.join(stacks)}), whose layers cannot be counted as one depth",
        f"blocks={stacks[0]!r}, or a part of the model such as model.{part}",
    )


def _by_pattern(model: nn.Module, pattern: str) -> Anatomy:
    found = {name: module for name, module in model.named_modules() if _matches(name, pattern)}
    if not found:
        raise expected(
            f"modules that match blocks={pattern!r} in {type(model).__name__}",
            "none",
            f"a path of this model, such as {_suggest_pattern(model)}",
        )
    hosts = {host.name if (host := host_of(module)) else None for module in found.values()}
    if len(hosts) == 1 and (name := hosts.pop()) is not None:
        return Anatomy(model, HOSTS[name], found)
    return Anatomy(model, Host(name="pattern", blocks=(), taps=lambda block: {}, example=pattern), found)


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
