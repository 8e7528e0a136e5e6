"""A network as a folder: `network.json` says what it is made of, `model.safetensors` has its weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.files import read_json, write_whole
from unsmooth.networks.config import Config, DecoderConfig, ViTConfig, from_dict
from unsmooth.networks.decoder import Decoder
from unsmooth.networks.encoder import Classifier, Encoder
from unsmooth.networks.vit import ViT
from unsmooth.schema import parse
from unsmooth.weights import first_mismatch, no_larger, read_header

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
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    write_whole(folder / WEIGHTS_FILE, save(tensors, {"format": "pt"}))


def load_network(folder: str | os.PathLike[str], dtype: torch.dtype | None = None) -> nn.Module:
    """Read a network that `save_network` wrote, in eval mode; None for `dtype` is the one it was written in.

    Raises:
        UnsmoothError: In one line, what is wrong with the files.
    """
    place = Path(folder)
    try:
        described = read_json(place / CONFIG_FILE)
        header = read_header(place / WEIGHTS_FILE)
    except FileNotFoundError as error:
        got = f"no {Path(error.filename or CONFIG_FILE).name}"
        raise expected(
            f"{CONFIG_FILE} and {WEIGHTS_FILE} in {str(place)!r}", got, "another copy of the folder"
        ) from None
    # Without memory first: some bytes of configuration can describe a network of any size.
    try:
        with no_larger(len(header.shapes), header.bytes), torch.device("meta"):
            wanted = {name: tuple(tensor.shape) for name, tensor in _built(described).state_dict().items()}
    except (RuntimeError, OverflowError, TypeError) as error:  # torch's, of sizes that no tensor has
        got = str(error).splitlines()[0][:200]
        raise expected(f"a network that can be built in {str(place)!r}", got, "another copy of the folder") from None
    wrong = first_mismatch(wanted, header.shapes)
    if wrong is not None:
        raise expected(f"the weights that {CONFIG_FILE} describes in {str(place)!r}", wrong, "files of one network")
    network, state = _built(described), load_file(place / WEIGHTS_FILE)
    kinds = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    network = network.to(dtype or (kinds.pop() if len(kinds) == 1 else torch.float32))
    network.load_state_dict(state)
    return network.eval()


@dataclass(frozen=True)
class _Head:
    classes: int
    pooling: str
    pooler: bool


def _built(described: Mapping[str, Any]) -> nn.Module:
    network = build(from_dict({name: value for name, value in described.items() if name != "classifier"}))
    if "classifier" not in described:
        return network
    if not isinstance(network, Encoder):
        raise expected(f"a classifier in {CONFIG_FILE} of an encoder", f"one of a {network.config.kind}", "an encoder")
    return Classifier(network, **asdict(parse(_Head, described["classifier"], where=CONFIG_FILE)))
