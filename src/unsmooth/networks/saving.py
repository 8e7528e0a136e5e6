"""A network as a folder: `network.json` says what it is made of, `model.safetensors` has its weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.files import write_whole
from unsmooth.networks.config import Config, DecoderConfig, ViTConfig, from_dict
from unsmooth.networks.decoder import Decoder
from unsmooth.networks.encoder import Classifier, Encoder
from unsmooth.networks.vit import ViT

CONFIG_FILE, WEIGHTS_FILE = "network.json", "model.safetensors"


def build(config: Config, seed: int = 0) -> ViT | Encoder | Decoder:
    """The network that a configuration describes, with its weights drawn.

    >>> type(build(ViTConfig(depth=1, dim=8, heads=2, hidden=16, image=8, patch=4))).__name__
    'ViT'
    """
    if isinstance(config, ViTConfig):
        return ViT(config, seed)
    return Decoder(config, seed) if isinstance(config, DecoderConfig) else Encoder(config, seed)


def is_network(folder: Path) -> bool:
    """Whether a folder has a network of ours in it."""
    return (folder / CONFIG_FILE).is_file()


def description(network: nn.Module) -> dict[str, Any] | None:
    """What goes into `network.json`; None where the module is none of ours.

    A `Classifier` is its encoder's configuration with its head under "classifier".
    """
    if isinstance(network, Classifier):
        head = {"classes": network.head.out_features, "pooling": network.pooling, "pooler": network.pooler is not None}
        return {**network.encoder.config.to_dict(), "classifier": head}
    return network.config.to_dict() if isinstance(network, ViT | Encoder | Decoder) else None


def save_network(network: nn.Module, folder: str | os.PathLike[str]) -> Path:
    """Write a network into a folder that `load_network` and `unsmooth.load` read.

    Raises:
        UnsmoothError: The module is none of ours.
    """
    place = Path(folder)
    write_description(network, place)
    write_weights(network.state_dict(), place)
    return place


def write_description(network: nn.Module, folder: Path) -> None:
    """Write `network.json` alone."""
    described = description(network)
    if described is None:
        raise expected("a ViT, Encoder, Classifier or Decoder of unsmooth.networks", type(network).__name__, "build()")
    write_whole(folder / CONFIG_FILE, json.dumps(described, indent=2) + "\n")


def write_weights(state: Mapping[str, Tensor], folder: Path) -> None:
    """Write `model.safetensors` alone."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    write_whole(folder / WEIGHTS_FILE, save(tensors, {"format": "pt"}))


def load_network(folder: str | os.PathLike[str], dtype: torch.dtype | None = None) -> nn.Module:
    """Read a network that `save_network` wrote, in eval mode; None for `dtype` is the one it was written in.

    Raises:
        UnsmoothError: In one line, what is wrong with the files.
    """
    place = Path(folder)
    network = _built(_read_description(place))
    state = _read_weights(place)
    wrong = _first_mismatch(network.state_dict(), state)
    if wrong is not None:
        raise expected(f"the weights that {CONFIG_FILE} describes in {str(place)!r}", wrong, "files of one network")
    kinds = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    network = network.to(dtype or (kinds.pop() if len(kinds) == 1 else torch.float32))
    network.load_state_dict(state)
    return network.eval()


def _built(described: dict[str, Any]) -> nn.Module:
    head = described.pop("classifier", None)
    network = build(from_dict(described))
    if head is None:
        return network
    assert isinstance(network, Encoder), "only an encoder is written with a classifier"
    return Classifier(network, **head)


def _read_description(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(folder, CONFIG_FILE, error) from None
    if not isinstance(found, dict):
        raise expected(f"an object in {CONFIG_FILE!r} of {str(folder)!r}", type(found).__name__, "another copy")
    return found


def _read_weights(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        raise _unreadable(folder, WEIGHTS_FILE, error) from None


def _unreadable(folder: Path, file: str, error: Exception) -> UnsmoothError:
    reason = "none" if isinstance(error, FileNotFoundError) else str(error).splitlines()[0].rstrip(".")
    return expected(f"a readable {file!r} in {str(folder)!r}", reason, "another copy of the folder")


def _first_mismatch(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str | None:
    for name in (*wanted, *found):
        if name not in found:
            return f"no {name!r}"
        if name not in wanted:
            return f"{name!r}, which it does not have"
        if wanted[name].shape != found[name].shape:
            return f"{name!r} of shape {tuple(found[name].shape)} where {tuple(wanted[name].shape)} is due"
    return None
