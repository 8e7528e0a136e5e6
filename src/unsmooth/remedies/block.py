"""Edits in their block: where they live, and the hooks that call them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from unsmooth.errors import UnsmoothError
from unsmooth.models.anatomy import Anatomy
from unsmooth.models.block_search import BlockParts
from unsmooth.models.host import Host
from unsmooth.models.wire import attends, remembered
from unsmooth.remedies.base import Edit
from unsmooth.remedies.call import Volatile
from unsmooth.remedies.entering import EnterBlock, EnterStack, LeaveStack
from unsmooth.remedies.hooks import (
    AddToBranch,
    AddToSum,
    EditHeads,
    EditInput,
    EditOther,
    EditOutput,
    EditValues,
    FitCheckpoint,
    LeaveBlock,
    NoteMiddle,
    remove_hooks,
)
from unsmooth.remedies.memory import get_ready
from unsmooth.remedies.routing import Mixing, edit_mixing, restore_mixing
from unsmooth.remedies.site import Site

# The name under which a block holds its edits, and so a part of their keys in a state_dict.
HOME = "unsmooth"
# Beneath it: the key that every remedied block has, and what a saved model keeps of the weights that were replaced.
APPLIED, REPLACED = "applied", "replaced"


class BlockRemedies(nn.Module):
    """All edits of one block, by the name of their remedy.

    Args:
        shared: What the blocks of one stack hand each other.
        device: Where the block is.
        parts: The parts of the block, as they were found before edits changed what it gives.
    """

    def __init__(self, shared: Volatile, device: torch.device, parts: BlockParts) -> None:
        super().__init__()
        self.parts = parts
        # Not every remedy has parameters: by this key a plain model tells any remedied checkpoint from its own.
        self.register_buffer(APPLIED, torch.ones(1, dtype=torch.uint8, device=device))
        # Whether the weights that its edits replaced are at hand, for `undo`.
        self.knows_plain = True
        self.shared = shared
        self.now = Volatile()
        # Those whose values or heads are edited, by path: others may put modules in their place later.
        self.projections: dict[str, nn.Module] = {}
        # Of those that have edits now, in the order of the stack.
        self.is_first = self.is_last = False
        # What opening the block up changed, to be undone with the last edit.
        self.before: dict[str, object] = {}

    def edits(self) -> Mapping[str, Edit]:
        """Name to edit, in the order they were applied."""
        return {name: edit for name, edit in self.named_children() if isinstance(edit, Edit)}


def remedies_of(block: nn.Module) -> BlockRemedies | None:
    """The edits that a block has, if any."""
    found = getattr(block, HOME, None)
    return found if isinstance(found, BlockRemedies) else None


def site_of(host: Host, block: nn.Module, path: str, index: int, depth: int) -> Site:
    """A block with its wiring read."""
    assert host.wiring is not None, "checked when the remedy was applied"
    return Site(block, path, index, depth, host, host.wiring(block))


def sites_of(anatomy: Anatomy) -> list[Site]:
    """Every block of a model whose host has a wiring, but for those without attention in between."""
    found, depth = [], anatomy.host.depth(anatomy.blocks)
    for index, (path, block) in enumerate(anatomy.blocks.items()):
        try:
            found.append(site_of(anatomy.host, block, path, index, depth))
        except UnsmoothError:
            if attends(block):
                raise
    return found


def stack_of(model: nn.Module, paths: list[str]) -> nn.Module:
    """The smallest module that runs all the blocks in one call, above the outermost list that holds them.

    What is in a list may be called again and again, as a group of ALBERT's blocks is.
    """
    parts = [path.split(".")[:-1] for path in paths]
    stack = model
    for names in zip(*parts, strict=False):
        inner = stack.get_submodule(names[0])
        if len(set(names)) > 1 or isinstance(inner, nn.ModuleList | nn.ModuleDict):
            break
        stack = inner
    return stack


def add_edit(site: Site, name: str, edit: Edit, shared: Volatile) -> None:
    """Put an edit into its block and hook it up."""
    block, wiring = site.block, site.wiring
    home = remedies_of(block)
    if home is None:
        get_ready()
        home = BlockRemedies(shared, site.like_weights()["device"], remembered(block))
        block.add_module(HOME, home)
        block.register_forward_pre_hook(
            EnterBlock(home, home.now, shared, block, site.host, wiring), with_kwargs=True, prepend=True
        )
        # First, so that those who record what a block gives record what it hands on.
        leave = LeaveBlock(home, home.now, site.host.batch_first(block))
        block.register_forward_hook(leave, prepend=True, always_call=True)
        fit = FitCheckpoint(site.index, site.depth, site.host, site.path)
        block.register_load_state_dict_pre_hook(fit)  # type: ignore[no-untyped-call]
    home.add_module(name, edit)
    edit.train(block.training)
    batch_first = site.host.batch_first(block)
    at = _modules(site)
    for place in _places_in(site, edit):
        if place == "on_values":
            _values(site, home).register_forward_hook(EditValues(edit, home.now, wiring.weights))
        elif place == "on_mixing":
            edit_mixing(block.get_submodule(wiring.attention), Mixing(edit, home.now, wiring.windowed))
        elif place == "on_heads":
            _note_values(site, home)
            _heads(site, home).register_forward_pre_hook(EditHeads(edit, home.now, wiring.weights))
        elif place == "on_other":
            for number, tap in enumerate(wiring.others):
                if tap is not None:
                    hook = EditOther(edit, number, home.now, batch_first, block, tap)
                    block.get_submodule(tap.module).register_forward_hook(hook)
        elif place.endswith("_sum"):
            _hook_sum(site, edit, place, home)
        elif place.endswith("_input"):
            at[place].register_forward_pre_hook(EditInput(edit, place, home.now, batch_first))
            _note_middle(site, edit, place, home)
        elif place in at:  # the others are acted on when the block is entered or left
            taps = site.host.taps(block)
            times = taps[place.removeprefix("on_")].times if place.removeprefix("on_") in taps else 1.0
            at[place].register_forward_hook(EditOutput(edit, place, home.now, batch_first, block, times))
            _sums_last(at[place])


def _modules(site: Site) -> dict[str, nn.Module]:
    """The modules whose input or output is edited, by place."""
    taps, (first, second) = site.host.taps(site.block), site.wiring.norms
    norms = {"on_attention_norm_input": first, "on_attention_norm": first}
    norms |= {"on_mlp_norm_input": second, "on_mlp_norm": second}
    paths = norms | {f"on_{name}": taps[name].module for name in site.branches}
    return {place: site.block.get_submodule(path) for place, path in paths.items()}


def _places_in(site: Site, edit: Edit) -> list[str]:
    """Where an edit acts in this block: once on a norm that attention and MLP share."""
    places = edit.places()
    if site.wiring.norms[0] != site.wiring.norms[1]:
        return list(places)
    shared = {"on_mlp_norm_input": "on_attention_norm_input", "on_mlp_norm": "on_attention_norm"}
    return [place for place in places if shared.get(place) not in places]


def _hook_sum(site: Site, edit: Edit, place: str, home: BlockRemedies) -> None:
    """A post-norm block's norm reads the sum of stream and branch; elsewhere no module does."""
    batch_first = site.host.batch_first(site.block)
    if site.wiring.style == "post":
        norm = site.block.get_submodule(site.wiring.norms[0 if place == "on_attention_sum" else 1])
        norm.register_forward_pre_hook(AddToSum(edit, place, home.now, batch_first))
        _note_middle(site, edit, place, home)
        return
    assert place == "on_attention_sum", "the sum with the MLP branch is what the block hands on: on_block"
    tap = site.host.taps(site.block)["attention"]
    hook = AddToBranch(edit, place, home.now, batch_first, site.block, tap.times)
    site.block.get_submodule(tap.module).register_forward_hook(hook)


def _note_middle(site: Site, edit: Edit, place: str, home: BlockRemedies) -> None:
    """For edits of what the MLP's norm in a post-norm block reads: the stream in that sum."""
    if site.wiring.style == "post" and place in ("on_mlp_sum", "on_mlp_norm_input"):
        norm = site.block.get_submodule(site.wiring.norms[0])
        norm.register_forward_hook(NoteMiddle(edit, home.now, site.host.batch_first(site.block)))


def _sums_last(module: nn.Module) -> None:
    """What reads a sum, or edits it, comes after edits of its parts, in whatever order they were applied."""
    for key in [key for key, hook in module._forward_hooks.items() if isinstance(hook, AddToBranch | NoteMiddle)]:
        module._forward_hooks[key] = module._forward_hooks.pop(key)


def _values(site: Site, home: BlockRemedies) -> nn.Module:
    path = site.wiring.weights.values_path
    return home.projections.setdefault(path, site.block.get_submodule(path))


def _heads(site: Site, home: BlockRemedies) -> nn.Module:
    path = site.wiring.weights.heads_path
    return home.projections.setdefault(path, site.block.get_submodule(path))


def _note_values(site: Site, home: BlockRemedies) -> None:
    module = _values(site, home)
    if not any(isinstance(hook, EditValues) and hook.edit is None for hook in module._forward_hooks.values()):
        module.register_forward_hook(EditValues(None, home.now, site.wiring.weights))


def drop_edit(site: Site, name: str) -> None:
    """Take an edit out of its block, and with the last one all that was put there for edits."""
    home = remedies_of(site.block)
    assert home is not None, "only called for blocks that have edits"
    edit = home.edits()[name]
    delattr(home, name)
    restore_mixing(site.block.get_submodule(site.wiring.attention), edit)
    for module in site.block.modules():
        remove_hooks(module, edit)
    if not home.edits():
        delattr(site.block, HOME)
        for module in site.block.modules():
            remove_hooks(module)


def hook_stack(stack: nn.Module, shared: Volatile) -> None:
    """Have `EnterStack` called before each pass with the blocks that have edits now; replaces an earlier one.

    A module may run several stacks, each with a `shared` of its own.
    """
    for kind in (EnterStack, LeaveStack):
        remove_hooks(stack, kind=kind, shared=shared)
    found = [home for module in stack.modules() if (home := remedies_of(module)) is not None]
    homes = [home for home in found if home.shared is shared]
    for place, one in enumerate(homes):
        one.is_first, one.is_last = place == 0, place == len(homes) - 1
    if homes:
        stack.register_forward_pre_hook(EnterStack(shared, homes), prepend=True)
        stack.register_forward_hook(LeaveStack(shared), always_call=True)
