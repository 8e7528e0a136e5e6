"""`apply`, `undo`, `fold`: one-line changes of a model that its user already has."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn
from torch.distributed.tensor import DTensor

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.models import find_anatomy
from unsmooth.models.anatomy import Anatomy
from unsmooth.models.block_parts import linear_weights, part
from unsmooth.models.watch import is_compiled
from unsmooth.remedies.base import Edit, option_defaults
from unsmooth.remedies.block import add_edit, drop_edit, hook_stack, remedies_of, sites_of, stack_of
from unsmooth.remedies.call import Volatile
from unsmooth.remedies.layers import Layers, choose_layers
from unsmooth.remedies.listing import find_remedy
from unsmooth.remedies.marking import mark, new_mark, unmark
from unsmooth.remedies.opening import close_up, open_up
from unsmooth.remedies.routing import why_not_mixable
from unsmooth.remedies.site import Site

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Applied:
    """One remedy as it was applied.

    Args:
        name: Its name.
        options: The options it was given.
        layers: The blocks it is in.
        report: Numbers that it gives about itself, by layer.
    """

    name: str
    options: Mapping[str, Any]
    layers: tuple[int, ...]
    report: Mapping[int, Mapping[str, float]]


def apply(
    model: M,
    name: str,
    *,
    layers: Layers = None,
    blocks: str | None = None,
    allow_leak: bool = False,
    **options: Any,
) -> M:
    """Change a model in place by a remedy, and return it.

    Apply before the optimiser is built, before `torch.compile`, DDP and FSDP: a remedy may bring new parameters.
    Remedies stack; each acts in the order applied.

    Args:
        model: Any model with blocks of a known family.
        name: A remedy, as `unsmooth.remedies.names()` lists them.
        layers: Which blocks: None for all, indices, a slice, or a fraction of depth (0.5 is the first half, -0.5 the
            last).
        blocks: Pattern over module paths, where a model has more than one stack.
        allow_leak: Apply to a causal model what would let tokens see later ones; warns.
        **options: The remedy's own, as `unsmooth.remedies.describe(name)` lists them.

    Raises:
        UnsmoothError: Something does not fit; the model is as it was.

    Example:
        >>> layer = nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> model = apply(model, "deescalate", tau=0.5, layers=slice(1, None))
        >>> [(done.name, done.layers, done.options["tau"]) for done in applied(model)]
        [('deescalate', (1, 2), 0.5)]
        >>> applied(undo(model))
        []
    """
    kind = find_remedy(name)
    options = _checked_options(kind, options)
    anatomy = _anatomy(model, blocks)
    sites = sites_of(anatomy)
    chosen = [sites[index] for index in choose_layers(layers, len(sites))]
    _check_sites(kind, chosen, options, allow_leak)
    # Building an edit checks its options and touches nothing.
    edits = [kind(site, **options) for site in chosen]
    order = 1 + max((edit.order for site in sites for edit in _edits(site).values()), default=-1)
    stack = stack_of(model, list(anatomy.blocks))
    shared, text = _shared(sites), new_mark()
    try:
        for site, edit in zip(chosen, edits, strict=True):
            edit.chosen, edit.order = dict(options), order
            edit.would_leak = kind.leaks(options) and not allow_leak
            _put_in(site, edit, shared, stack)
            mark(site.block, f"{text} {_constants(edit)}")
    except BaseException:
        for site in reversed(chosen):
            if kind.name in _edits(site):
                _take_out(site, kind.name, stack, _remove)
        raise
    finally:
        hook_stack(stack, list(anatomy.blocks.values()), shared)
    return model


def undo(model: M, *, blocks: str | None = None) -> M:
    """Take every remedy out of a model, in place, and return it.

    Weights that a remedy replaced come back as they were when it was applied, so a model in which nothing was trained
    is the same to the bit. Weights that were trained and that no remedy replaced stay as trained.
    """
    stack = _stack(model, blocks)
    for site, name in reversed(_everything(model, blocks)):
        _take_out(site, name, stack, _remove)
    hook_stack(stack, [], Volatile())
    return model


def fold(model: M, *, blocks: str | None = None) -> M:
    """Write every remedy of a model into its ordinary weights, in place, and return it.

    The model gives the same outputs as before, has no trace of a remedy left, costs what the plain model costs, and
    saves and loads as it always did.

    Raises:
        UnsmoothError: One of them does not fold; the model is as it was.
    """
    found = _everything(model, blocks)
    if not found:
        raise expected("a model with remedies applied", "a plain one", "unsmooth.apply(model, name) first")
    for site, name in found:
        reason = _edits(site)[name].why_not_foldable()
        if reason is not None:
            raise expected(
                "remedies that fold into weights",
                f"{name} in block {site.path!r}, which does not: {reason}",
                "unsmooth.remedies.save(model, folder), which keeps remedies beside the weights",
            )
    stack = _stack(model, blocks)
    for site, name in sorted(found, key=lambda one: _edits(one[0])[one[1]].fold_order):
        _take_out(site, name, stack, lambda edit, site: edit.fold(site))
    hook_stack(stack, [], Volatile())
    return model


def applied(model: nn.Module, *, blocks: str | None = None) -> list[Applied]:
    """The remedies a model has, in the order they were applied."""
    by_order: dict[int, list[tuple[Site, Edit]]] = {}
    for site, name in _everything(model, blocks):
        edit = _edits(site)[name]
        by_order.setdefault(edit.order, []).append((site, edit))
    return [
        Applied(
            name=found[0][1].name,
            options=dict(found[0][1].chosen),
            layers=tuple(site.index for site, _ in found),
            report={site.index: report for site, edit in found if (report := dict(edit.report()))},
        )
        for found in by_order.values()
    ]


def _checked_options(kind: type[Edit], options: Mapping[str, Any]) -> dict[str, Any]:
    known = option_defaults(kind)
    for option in options:
        if option not in known:
            if not known:
                raise expected(f"no options for {kind.name}", repr(option), f"unsmooth.apply(model, {kind.name!r})")
            raise unknown_name(f"option of {kind.name}", option, known)
    missing = [name for name, default in known.items() if default is inspect.Parameter.empty and name not in options]
    if missing:
        raise expected(f"the options {', '.join(missing)} of {kind.name}", "none", f"{missing[0]}=…")
    return {**known, **options}


def _anatomy(model: nn.Module, blocks: str | None) -> Anatomy:
    if isinstance(model, nn.Module):
        _check_plain(model)
    anatomy = find_anatomy(model, blocks)
    if anatomy.host.wiring is None:
        raise expected(
            f"blocks that remedies know how to change in {type(model).__name__}",
            f"{anatomy.host.name} blocks",
            "a model of BERT, RoBERTa, MPNet, ALBERT, GPT-2, GPT-NeoX, Llama, Qwen, ViT, DeiT or nn.TransformerEncoder",
        )
    return anatomy


def _check_plain(model: nn.Module) -> None:
    for module in model.modules():
        kind = type(module).__name__
        if is_compiled(module):
            what = "a compiled one, which ignores what is changed after"
            raise expected("a model that is not compiled yet", what, "unsmooth.apply before torch.compile")
        if kind in ("DistributedDataParallel", "FullyShardedDataParallel"):
            raise expected("a model that is not wrapped yet", kind, "unsmooth.apply before wrapping it")
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise expected("whole weights", "sharded ones", "unsmooth.apply before fully_shard")


def _check_sites(kind: type[Edit], sites: list[Site], options: Mapping[str, Any], allow_leak: bool) -> None:
    for site in sites:
        if kind.name in _edits(site):
            again = f"{kind.name} in block {site.path!r} already"
            raise expected(f"layers without {kind.name}", again, "unsmooth.undo(model), or other layers")
        _check_weights(site)
        reason = _mixing_refusal(kind, site) or kind.refusal(site, options)
        if reason is not None:
            raise UnsmoothError(f"{kind.name} cannot be applied to {site.host.name} block {site.path!r}: {reason}.")
    if not kind.leaks(options) or not any(site.causal for site in sites):
        return
    if not allow_leak:
        raise expected(
            f"a remedy with a causal form for a decoder ({sites[0].host.name})",
            f"{kind.name} with options that let a token see later ones",
            "its default options, or allow_leak=True if that is what you want",
        )
    warnings.warn(
        f"{kind.name} lets tokens of a causal model see later ones: outputs leak the future.", UserWarning, stacklevel=3
    )


def _mixing_refusal(kind: type[Edit], site: Site) -> str | None:
    """Attention is mixed by one edit only: what one does to a map, another need not leave it there to do."""
    if kind.on_mixing is Edit.on_mixing:
        return None
    other = next((name for name, edit in _edits(site).items() if "on_mixing" in edit.places()), None)
    if other is not None:
        return f"{other} already does the mixing of its attention"
    return why_not_mixable(part(site.block, site.wiring.attention))


def _check_weights(site: Site) -> None:
    """Refuse quantised weights, adapters and anything else that is not the linear map it looks like."""
    if site.host.value_projection is not None:
        site.host.value_projection(site.block)
    for path in site.wiring.mlp:
        linear_weights(site.block, path)


def _put_in(site: Site, edit: Edit, shared: Volatile, stack: nn.Module) -> None:
    first = remedies_of(site.block) is None
    before = open_up(site, stack) if first else {}
    add_edit(site, edit.name, edit, shared)
    home = remedies_of(site.block)
    if first and home is not None:
        home.before = before
    edit.install(site)


def _take_out(site: Site, name: str, stack: nn.Module, how: Callable[[Edit, Site], None]) -> None:
    home = remedies_of(site.block)
    assert home is not None, "only called for blocks that have edits"
    how(home.edits()[name], site)
    drop_edit(site, name)
    if remedies_of(site.block) is None:
        close_up(site, stack, home.before)
        unmark(site.block)
    else:
        mark(site.block, f"without {name}")


def _constants(edit: Edit) -> str:
    """What torch.compile would take for the same in blocks of one class: all about an edit but its parameters."""
    plain = {key: value for key, value in vars(edit).items() if isinstance(value, int | float | str | tuple | None)}
    shapes = {key: tuple(value.shape) for key, value in edit.state_dict().items()}
    return f"{plain} {shapes}"


def _remove(edit: Edit, site: Site) -> None:
    edit.remove(site)  # by the instance: `Edit.remove` would pass over what its class overrides


def _everything(model: nn.Module, blocks: str | None) -> list[tuple[Site, str]]:
    """Every (site, remedy) in the order applied."""
    anatomy = find_anatomy(model, blocks)
    if anatomy.host.wiring is None:
        return []
    found = [(site, name) for site in sites_of(anatomy) for name in _edits(site)]
    return sorted(found, key=lambda one: _edits(one[0])[one[1]].order)


def _edits(site: Site) -> Mapping[str, Edit]:
    home = remedies_of(site.block)
    return {} if home is None else home.edits()


def _shared(sites: list[Site]) -> Volatile:
    homes = (remedies_of(site.block) for site in sites)
    return next((home.shared for home in homes if home is not None), Volatile())


def _stack(model: nn.Module, blocks: str | None) -> nn.Module:
    return stack_of(model, list(find_anatomy(model, blocks).blocks))
