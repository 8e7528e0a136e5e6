"""`calibrate`: one pass over data, for remedies that start from what they see."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models.watch import first_output
from unsmooth.remedies.base import Edit
from unsmooth.remedies.block import BlockRemedies
from unsmooth.remedies.call import Volatile
from unsmooth.remedies.checking import is_sharded
from unsmooth.remedies.site import Site

M = TypeVar("M", bound=nn.Module)


def calibrate(model: M, batch: Any) -> M:
    """Let the remedies of a model that start from data see some, and return the model.

    To be called after `apply` and before training, DDP and FSDP, in every process with the same batch. The model runs
    once, in evaluation mode and without gradients.

    Args:
        model: With a remedy that reads data, such as "admin".
        batch: What the model is called with: a tensor, a mapping of keyword arguments, or several arguments in a tuple
            or list. One batch of the training data is enough.

    Raises:
        UnsmoothError: None of its remedies reads data, or it is sharded already; the model is as it was.

    Example:
        >>> from unsmooth.remedies import apply
        >>> _ = torch.manual_seed(1)
        >>> layer = nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
        >>> model = apply(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), "admin", start="ones")
        >>> model = calibrate(model, torch.randn(8, 5, 4))
        >>> omega = model.layers[2].unsmooth.admin.omega  # as large as the variance of the layers below says
        >>> bool((omega > 1.0).all())
        True
    """
    found = [edits for edits in _by_stack(model) if _reads_data(type(edits[0]))]
    if not found:
        raise expected("a model with a remedy that reads data", "none", 'unsmooth.apply(model, "admin") first')
    if is_sharded(model):  # what is written while a pass has a weight whole is forgotten after it
        raise expected("whole weights", "sharded ones", "unsmooth.remedies.calibrate before fully_shard")
    with in_evaluation(model):
        for edits in found:
            type(edits[0]).calibrate(edits, lambda: call_on(model, batch))
    return model


@contextmanager
def in_evaluation(*modules: nn.Module) -> Iterator[None]:
    """Modules in evaluation mode, without gradients; afterwards each part is in the mode it was in."""
    training = {part: part.training for module in modules for part in module.modules()}
    try:
        for module in modules:
            module.eval()
        with torch.no_grad():
            yield
    finally:
        for part, mode in training.items():
            part.training = mode


def runs_alone(site: Site) -> bool:
    """Whether a block can be called with nothing but the stream."""
    parameters = list(inspect.signature(site.block.forward).parameters.values())[1:]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(one.default is not inspect.Parameter.empty or one.kind in variadic for one in parameters)


def run_alone(sites: Sequence[Site], rows: int = 4, tokens: int = 64) -> None:
    """Pass random tokens, independent and of variance one, through blocks one after the other; always the same ones."""
    x_BND = torch.randn(rows, tokens, sites[0].dim, generator=torch.Generator().manual_seed(0))
    x_BND = x_BND.to(**sites[0].like_weights())
    with in_evaluation(*(site.block for site in sites)):
        for site in sites:
            batch_first = site.host.batch_first(site.block)
            x = first_output(site.block(x_BND if batch_first else x_BND.transpose(0, 1)))
            x_BND = x if batch_first else x.transpose(0, 1)


def _by_stack(model: nn.Module) -> list[list[Edit]]:
    """The edits of one remedy in one stack, in the order of its blocks."""
    found: dict[tuple[Volatile, type[Edit], int], list[Edit]] = {}
    for home in (module for module in model.modules() if isinstance(module, BlockRemedies)):
        for edit in home.edits().values():
            found.setdefault((home.shared, type(edit), edit.order), []).append(edit)
    return list(found.values())


def _reads_data(kind: type[Edit]) -> bool:
    return kind.calibrate.__func__ is not Edit.calibrate.__func__  # type: ignore[attr-defined]


def call_on(model: nn.Module, batch: Any) -> object:
    """Call a model on a batch: a tensor, a mapping of keyword arguments, or several arguments in a tuple or list."""
    if isinstance(batch, Tensor):
        return model(batch)
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, tuple | list):
        return model(*batch)
    raise expected("a batch as a tensor, a mapping or a tuple", type(batch).__name__, "what the model is called with")
