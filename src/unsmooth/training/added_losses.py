"""Losses of hidden states beside the task's own, for every task: a recipe's ``losses=("cosine(weight=0.1)",)``."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.losses import LossTerm, parse_loss
from unsmooth.models import Host, find_anatomy
from unsmooth.models.watch import first_input, first_output


class AddedLosses:
    """Listens to a model that this thread trains, and makes losses of what it heard in the last pass.

    Tokens that the model itself puts in front, such as a class token, and padding are left out. Hooks stay for the run:
    ones that come and go would be compiled anew in every step, and compiled code cannot ask which thread it runs in.

    Args:
        texts: What `unsmooth.losses.parse_loss` takes.
        model: What is trained, maybe wrapped; where there are no losses, any module.
    """

    def __init__(self, texts: Sequence[str], model: nn.Module) -> None:
        self.terms = tuple(parse_loss(text) for text in texts)
        self.heard: dict[int, Tensor] = {}
        self.masks: dict[str, Tensor | None] = {}
        self._thread = threading.get_ident()
        if self.terms:
            self._listen(model)

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold all of them."""
        return all(term.loss.capturable for term in self.terms)

    def _listen(self, model: nn.Module) -> None:
        anatomy = find_anatomy(model)
        blocks = list(anatomy.blocks.values())
        self.prefix = anatomy.prefix_tokens
        self.layers = [_layer(term, len(blocks)) for term in self.terms]
        needed = {*self.layers, *(0 for term in self.terms if term.loss.reads == "layers")}
        enters = HearEntry(self, anatomy.host, keeps=0 in needed, batch_first=anatomy.host.batch_first(blocks[0]))
        blocks[0].register_forward_pre_hook(enters, with_kwargs=True)
        for layer in sorted(needed - {0}):
            block = blocks[layer - 1]
            block.register_forward_hook(HearBlock(self, layer, anatomy.host.batch_first(block)))

    def listens_to(self, module: nn.Module) -> bool:
        """Whether a call of a block is the training's."""
        own = torch.compiler.is_dynamo_compiling() or threading.get_ident() == self._thread
        return own and module.training

    def total(self, loss: Tensor) -> Tensor:
        """The task's loss of the pass just made, with these added; what was heard is forgotten."""
        mask_BN = self.masks.get("real")
        mask_BN = None if mask_BN is None else mask_BN[:, self.prefix :].bool()
        for term, layer in zip(self.terms, self.layers if self.terms else (), strict=True):
            first = {"first_BND": self.heard[0][:, self.prefix :]} if term.loss.reads == "layers" else {}
            loss = loss + term(self.heard[layer][:, self.prefix :], mask_BN, **first)
        self.heard.clear()
        self.masks.clear()
        return loss


class HearEntry:
    """Before the first block: which tokens are real, and where asked for, the tokens themselves."""

    def __init__(self, added: AddedLosses, host: Host, *, keeps: bool, batch_first: bool) -> None:
        self.added, self.host, self.keeps, self.batch_first = added, host, keeps, batch_first

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Called by torch before the block."""
        if self.added.listens_to(module):
            self.added.masks["real"] = self.host.real_tokens(args, kwargs)
            if self.keeps:
                found = first_input(args, kwargs)
                self.added.heard[0] = found if self.batch_first else found.transpose(0, 1)


class HearBlock:
    """After a block: its tokens."""

    def __init__(self, added: AddedLosses, layer: int, batch_first: bool) -> None:
        self.added, self.layer, self.batch_first = added, layer, batch_first

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        """Called by torch after the block."""
        if self.added.listens_to(module):
            found = first_output(output)
            self.added.heard[self.layer] = found if self.batch_first else found.transpose(0, 1)


def _layer(term: LossTerm, depth: int) -> int:
    if term.loss.reads == "views":
        got = f"{term.loss.name}, which compares two passes"
        raise expected("a loss of one pass over the batch", got, "a loop of your own, or dispersion(of='means')")
    layer = term.layer if term.layer >= 0 else depth + 1 + term.layer
    if not 0 <= layer <= depth:
        raise expected(f"a layer from 0 to {depth} for {term.loss.name}", term.layer, "layer=-1 for the last")
    return layer
