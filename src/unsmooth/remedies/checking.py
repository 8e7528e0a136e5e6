"""Everything that `apply`, `undo` and `fold` refuse, before anything is touched."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models.block_parts import linear_weights, part, refuse, weight_at
from unsmooth.models.hooks import is_compiled
from unsmooth.models.host import multiplier
from unsmooth.models.stored import is_quantised
from unsmooth.models.wire import parts_of
from unsmooth.models.wiring import ValueParts, wired_values
from unsmooth.remedies.base import Edit, leak, option_defaults
from unsmooth.remedies.block import remedies_of
from unsmooth.remedies.routing import why_not_mixable
from unsmooth.remedies.site import Site
from unsmooth.spec import checked, options_of


def edits_at(site: Site) -> Mapping[str, Edit]:
    """The edits that a block has, by the name of their remedy."""
    home = remedies_of(site.block)
    return {} if home is None else home.edits()


def checked_options(kind: type[Edit], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a remedy with its defaults; refuses what it does not have, or not so, and what is missing."""
    known = options_of(kind.__init__)
    given = checked(kind.name, known, options)
    missing = [name for name, option in known.items() if option.required and name not in given]
    if missing:
        raise expected(f"the options {', '.join(missing)} of {kind.name}", "none", f"{missing[0]}=…")
    return {**option_defaults(kind), **given}


def check_plain(model: nn.Module) -> None:
    """Refuse a model that a remedy comes too late for: compiled, wrapped or sharded."""
    for module in model.modules():
        kind = type(module).__name__
        if is_compiled(module):
            what = "a compiled one, which ignores what is changed after"
            raise expected("a model that is not compiled yet", what, "unsmooth.apply before torch.compile")
        if hasattr(module, "base_layer") and type(module).__module__.startswith("peft."):
            hint = "unsmooth.apply before the adapters are added, or after merge_and_unload()"
            raise expected("a model without adapters yet", f"PEFT's {kind} in the place of a layer", hint)
        if kind in ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"):
            raise expected("a model that is not wrapped yet", kind, "unsmooth.apply before wrapping it")
    if is_sharded(model):
        raise expected("whole weights", "sharded ones", "unsmooth.apply before fully_shard")


def check_whole(model: nn.Module) -> None:
    """Refuse to take remedies out of a sharded model: FSDP knows no parameters that come or go later."""
    if is_sharded(model):
        raise expected(
            "whole weights",
            "sharded ones",
            "a model that is not sharded, with the same remedies, which loads torch's get_model_state_dict(model, "
            "options=StateDictOptions(full_state_dict=True)) of this one",
        )


def check_known(sites: Sequence[Site]) -> None:
    """Refuse to take remedies out where nobody knows the weights that they replaced."""
    if not all(home.knows_plain for site in sites if (home := remedies_of(site.block)) is not None):
        raise expected(
            "the weights that remedies replaced",
            "a model saved while it was sharded or offloaded, which kept none",
            "unsmooth.apply on the plain model again",
        )


def is_sharded(model: nn.Module) -> bool:
    """Whether some of its weights are spread over processes."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def check_new(kind: type[Edit], sites: list[Site]) -> None:
    """Refuse blocks that have a remedy already."""
    for site in sites:
        if kind.name in edits_at(site):
            again = f"{kind.name} in block {site.path!r} already"
            raise expected(f"layers without {kind.name}", again, "unsmooth.undo(model), or other layers")


def check_sites(kind: type[Edit], sites: list[Site], options: Mapping[str, Any]) -> None:
    """Refuse blocks that cannot have a remedy."""
    for site in sites:
        _check_weights(kind, site)
        reason = _mixing_refusal(kind, site) or kind.refusal(site, options)
        if reason is not None:
            raise UnsmoothError(f"{kind.name} cannot be applied to {site.host.name} block {site.path!r}: {reason}.")


def check_leak(kind: type[Edit], sites: list[Site], options: Mapping[str, Any], allow_leak: bool) -> None:
    """Refuse leaks that nobody has allowed."""
    if not kind.leaks(options) or not any(site.causal for site in sites):
        return
    if not allow_leak:
        raise leak(f"for a decoder ({sites[0].host.name})", kind)
    warnings.warn(
        f"{kind.name} lets tokens of a causal model see later ones: outputs leak the future.", UserWarning, stacklevel=3
    )


def _mixing_refusal(kind: type[Edit], site: Site) -> str | None:
    """Attention is mixed by one edit only: what one does to a map, another need not leave it there to do."""
    if kind.on_mixing is Edit.on_mixing:
        return None
    other = next((name for name, edit in edits_at(site).items() if "on_mixing" in edit.places()), None)
    if other is not None:
        return f"{other} already does the mixing of its attention"
    return why_not_mixable(part(site.block, site.wiring.attention))


def check_values(site: Site, edit: Edit) -> None:
    """What an edit does to values, heads or maps needs weights that are proved, and heads that are values mixed."""
    inside = {"on_values", "on_mixing", "on_heads"} & set(edit.places())
    weights, why = site.wiring.values, None
    if inside and isinstance(weights, str):
        why = f"it acts inside attention, whose weights are not known: {weights.removesuffix('.')}"
    elif isinstance(weights, ValueParts) and inside & {"on_values", "on_heads"}:
        if weights.value_norm is not None or ("on_heads" in inside and weights.scale != 1.0):
            why = "its heads mix what a norm or a factor makes of the values"
        elif "on_heads" in inside and weights.gate is not None:
            why = "a gate is between its heads and their projection"
    if why is not None:
        raise UnsmoothError(f"{edit.name} cannot be applied to {site.host.name} block {site.path!r}: {why}.")


def check_windows(site: Site, edit: Edit) -> None:
    """Inside windows of an image, a mean over tokens would be over those of a window, and of what fills it up.

    What is made of attention's own map, which is a window's, stays inside the window.
    """
    places = ("on_values", "on_heads") if edit.keeps_to_map() else ("on_values", "on_mixing", "on_heads")
    inside = [place for place in edit.places() if place in places]
    if site.wiring.windowed and inside and edit.causal != "unchanged":
        raise UnsmoothError(
            f"{edit.name} cannot be applied to {site.host.name} block {site.path!r}: it looks across the tokens that "
            "attention mixes, which are those of one window, shifted and filled up, and not those of the image."
        )


def check_rows(site: Site, edit: Edit) -> None:
    """Where a block has several sequences in one row, attention is called for each by itself, on no batch of them."""
    if parts_of(site.block).rows is not None and ("on_mixing" in edit.places() or getattr(edit, "extra_inside", None)):
        raise UnsmoothError(
            f"{edit.name} cannot be applied to {site.host.name} block {site.path!r}: it mixes attention's own map or "
            "brings tokens, and this block has several sequences in one row, each with a map of its own."
        )


def check_norms(site: Site, edit: Edit) -> None:
    """Where attention and MLP read one norm, what is done to it for one of them would be done to the other too.

    What is done to a branch that the block multiplies by zero afterwards would be lost.
    """
    places = edit.places()
    for name, tap in site.host.taps(site.block).items():
        times = torch.as_tensor(multiplier(site.block, tap.times, weight_at))
        if {f"on_{name}", f"on_{name}_sum"} & set(places) and not bool((1.0 / times).isfinite().all()):
            raise UnsmoothError(
                f"{edit.name} cannot be applied to {site.host.name} block {site.path!r}: it edits the branch of "
                f"{name}, which this block multiplies by zero before it is added."
            )
    sums = site.wiring.style != "post" and any(place.endswith("_sum") for place in places)
    if sums and (site.wiring.others or site.wiring.keeps != (1.0, 1.0)):
        why = "a branch beside attention and MLP is added" if site.wiring.others else "the block multiplies it"
        raise UnsmoothError(
            f"{edit.name} cannot be applied to {site.host.name} block {site.path!r}: it edits the stream after "
            f"attention, and {why} before."
        )
    for site_name, path in zip(("attention", "mlp"), site.wiring.norms, strict=True):
        what = None
        if not path and {f"on_{site_name}_norm", f"on_{site_name}_norm_input"} & set(places):
            what = f"edits a norm before {site_name}, where this block has none"
        if what is not None:
            raise UnsmoothError(f"{edit.name} cannot be applied to {site.host.name} block {site.path!r}: it {what}.")
    for end in ("_norm_input", "_norm"):
        acts = [f"on_{branch}{end}" in places for branch in ("attention", "mlp")]
        if len(site.wiring.input_norms) == 1 and any(acts) and not all(acts):
            raise UnsmoothError(
                f"{edit.name} cannot be applied to {site.host.name} block {site.path!r}: it edits what one of "
                "attention and MLP reads, and here both read one norm."
            )


def check_handed_on(sites: Sequence[Site], new: Mapping[str, Edit]) -> None:
    """Refuse blocks that hand each other something for every token and would have other tokens.

    Args:
        sites: The blocks of a stack, with the edits that they have.
        new: Path of a block to the edit that it is to get.
    """
    groups: dict[str, list[tuple[Site, str, tuple[int, ...]]]] = {}
    for site in sites:
        edits = [*edits_at(site).values(), *([new[site.path]] if site.path in new else [])]
        bring = tuple(edit.order for edit in edits if getattr(edit, "extra_inside", 0))
        for edit in edits:
            if (key := edit.hands_on()) is not None:
                groups.setdefault(key, []).append((site, edit.name, bring))
    for (first, name, tokens), *rest in groups.values():
        other = next((site for site, _, bring in rest if bring != tokens), None)
        if other is not None:
            raise expected(
                f"the same tokens in all blocks of {name}, which hand each other what they made of each",
                f"blocks {first.path!r} and {other.path!r}, of which one has registers that the other has not",
                f"registers in every layer, or {name} in layers that all have them or all have none",
            )


def _check_weights(kind: type[Edit], site: Site) -> None:
    """Refuse quantised weights, adapters and anything else that is not the linear map it looks like."""
    needs = ["attention", "mlp"] if site.wiring.has_mlp and kind.on_mlp is not Edit.on_mlp else ["attention"]
    if absent := [name for name in needs if name not in site.branches]:
        raise UnsmoothError(
            f"Expected the sites {' and '.join(needs)} in {site.host.name} block {site.path!r} but got none for "
            f"{' and '.join(absent)}. Try layers that have them."
        )
    if isinstance(site.wiring.values, ValueParts):
        wired_values(site.block, site.wiring)
    elif is_quantised(site.block):
        raise refuse(site.block, "float weights", "quantised ones")
    for path in site.wiring.mlp:
        linear_weights(site.block, path)
    for path in site.wiring.experts:
        weight_at(site.block, path)
