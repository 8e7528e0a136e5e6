"""How a model is called on a batch, and which of the batch's tokens a scan looks at."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models.anatomy import Anatomy
from unsmooth.models.hosts.torch_encoder import not_padding
from unsmooth.models.spread import home_of, is_sharded, is_spread, sharded_as_before
from unsmooth.scanning.data import RawBatch

TokenChoice = Literal["content", "all"]
TOKEN_CHOICES: Mapping[str, str] = {
    "content": "real tokens without padding, class, separator, start, end and other special tokens",
    "all": "every token that is not padding, special tokens included",
}
# Read by the scan, never handed to the model.
RESERVED = ("token_mask", "special_tokens_mask", "labels")


def transformers_core(model: nn.Module, anatomy: Anatomy) -> nn.Module | None:
    """The Hugging Face backbone inside `model` that holds the blocks, without its heads; None where there is none.

    Heads are left out because a language model's logits cost more memory than all its hidden states.
    """
    if any(base.__name__ == "FSDPModule" for base in type(model).__mro__):
        # Calling a part of an FSDP2 model first would make that part its root.
        return model if hasattr(model, "main_input_name") else None
    first_block = next(iter(anatomy.blocks.values()))
    for module in model.modules():
        if hasattr(module, "main_input_name") and hasattr(module, "config"):
            core = getattr(module, "base_model", module)
            if isinstance(core, nn.Module) and any(child is first_block for child in core.modules()):
                return core
    return None


def as_inputs(batch: RawBatch, core: nn.Module | None) -> RawBatch:
    """Name a bare tensor the way a Hugging Face model wants it; leave the rest alone."""
    if isinstance(batch, Tensor):
        return batch if core is None else {_input_name(batch): batch}
    return batch


def _input_name(tensor: Tensor) -> str:
    if not tensor.is_floating_point() and tensor.ndim == 2:
        return "input_ids"
    if tensor.is_floating_point() and tensor.ndim == 4:
        return "pixel_values"
    if tensor.is_floating_point() and tensor.ndim == 3:
        return "inputs_embeds"
    raise expected(
        "token ids (batch, tokens), pixels (batch, channels, height, width) or embeddings (batch, tokens, dim)",
        f"a {tensor.dtype} tensor of shape {tuple(tensor.shape)}",
        "a dict that names the model's inputs",
    )


def call(model: nn.Module, inputs: RawBatch) -> None:
    """Run the model for its hooks' sake."""
    if isinstance(inputs, Tensor):
        model(inputs)
        return
    accepted = inspect.signature(model.forward).parameters
    arguments = {key: value for key, value in inputs.items() if key not in RESERVED}
    # A tokenizer may return more than its model takes (token_type_ids for MPNet).
    if "token_type_ids" not in accepted:
        arguments.pop("token_type_ids", None)
    model(**arguments)


@dataclass(frozen=True)
class Selection:
    """Which tokens of a batch are measured: those of `window` where `selected_BN` is True, None for all of them.

    `real_BN` marks what is not padding, None where nothing is known to be; `width` is the number of tokens that the
    batch's masks speak of, None where there are none.
    """

    window: slice = field(default_factory=lambda: slice(None))
    selected_BN: Tensor | None = None
    real_BN: Tensor | None = None
    ids_BN: Tensor | None = None
    width: int | None = None


EVERYTHING = Selection()


def select_tokens(inputs: RawBatch, choice: TokenChoice, special_ids: frozenset[int], prefix_tokens: int) -> Selection:
    """Padding is never selected; special tokens only for "all"."""
    fields: Mapping[str, Any] = inputs if isinstance(inputs, Mapping) else {}
    ids = fields.get("input_ids")
    real = _real_tokens(fields)
    special = _special_tokens(fields, ids, special_ids) if choice == "content" else None
    selected = real if special is None else (~special if real is None else real & ~special)
    if selected is None:
        return Selection(slice(prefix_tokens if choice == "content" else 0, None), real_BN=real, ids_BN=ids)
    window, width = _common_window(selected), selected.shape[1]
    if window is not None:
        return Selection(window, real_BN=real, ids_BN=ids, width=width)
    return Selection(selected_BN=selected, real_BN=real, ids_BN=ids, width=width)


def _common_window(selected_BN: Tensor) -> slice | None:
    """The one run of tokens that every sequence selects, where there is one: a view, and a mask costs a copy a layer.

    Masks start on the CPU, where asking is free.
    """
    if selected_BN.device.type != "cpu" or not bool((selected_BN == selected_BN[:1]).all()):
        return None
    places = selected_BN[0].nonzero().flatten()
    if len(places) == 0 or int(places[-1] - places[0]) + 1 != len(places):
        return None
    return slice(int(places[0]), int(places[-1]) + 1)


def _real_tokens(fields: Mapping[str, Any]) -> Tensor | None:
    for key in ("token_mask", "attention_mask"):
        mask = fields.get(key)
        if isinstance(mask, Tensor):
            if mask.ndim != 2:
                raise expected(f"`{key}` of shape (batch, tokens)", tuple(mask.shape), 'a 2-D "token_mask" beside it')
            return mask != 0
    padding = fields.get("src_key_padding_mask")
    if isinstance(padding, Tensor):
        return not_padding(padding)
    return None


def _special_tokens(fields: Mapping[str, Any], ids: Any, special_ids: frozenset[int]) -> Tensor | None:
    given = fields.get("special_tokens_mask")
    if isinstance(given, Tensor):
        return given != 0
    if isinstance(ids, Tensor) and special_ids:
        return torch.isin(ids, torch.tensor(sorted(special_ids), device=ids.device, dtype=ids.dtype))
    return None


@contextmanager
def quiet_evaluation(model: nn.Module, core: nn.Module | None) -> Iterator[None]:
    """Evaluation mode, no gradients, no key-value cache; everything is put back as it was."""
    training = [module for module in model.modules() if module.training]
    config = getattr(core, "config", None)
    cache = getattr(config, "use_cache", None)
    try:
        model.eval()
        if config is not None and cache is not None:
            config.use_cache = False
        with torch.no_grad(), sharded_as_before(model):
            yield
    finally:
        for module in training:
            module.training = True
        if config is not None and cache is not None:
            config.use_cache = cache


@contextmanager
def moved(model: nn.Module, device: torch.device | None) -> Iterator[torch.device]:
    """The model on `device` for the duration, or where it already is."""
    home = home_of(model)
    if device is None or device == home:
        yield home
        return
    if is_spread(model) or is_sharded(model):
        how = "sharded by FSDP2" if is_sharded(model) else "spread over devices by accelerate"
        raise expected(f"a model in one place, to move it to {device}", f"one that is {how}", "leaving out the device")
    try:
        model.to(device)
        yield device
    finally:
        model.to(home)
