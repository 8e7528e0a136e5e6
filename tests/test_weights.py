"""Headers are compared with their files, and networks with headers, before memory is taken."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import unsmooth
from unsmooth import networks
from unsmooth.errors import UnsmoothError
from unsmooth.weights import no_larger, read_gguf_header, read_header

SMALL = networks.ViTConfig(depth=2, dim=8, heads=2, hidden=16, image=8, patch=4, classes=5)


def test_headers_are_those_of_the_library(tmp_path: Path) -> None:
    kinds = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.float8_e4m3fn)
    tensors = {f"t{place}": torch.ones(2, place).to(kind) for place, kind in enumerate(kinds)}
    save_file({**tensors, "scalar": torch.tensor(1.0), "none": torch.zeros(0)}, tmp_path / "a", {"said": "so"})
    header = read_header(tmp_path / "a")
    assert header.shapes == {**{name: tuple(one.shape) for name, one in tensors.items()}, "scalar": (), "none": (0,)}
    assert header.bytes == sum(one.numel() * one.element_size() for one in tensors.values()) + 4
    assert header.metadata == {"said": "so"}


def _entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"a": _entry(shape=[3])}, "other bytes than 'a' needs"),
        ({"a": _entry(shape=[-2])}, "other bytes"),
        ({"a": _entry(dtype="F33")}, "other bytes"),
        ({"a": _entry(dtype="32")}, "other bytes"),
        ({"a": _entry(dtype="I8_X", shape=[8])}, "other bytes"),
        ({"a": _entry(shape=[2**40, 2**40])}, "other bytes"),
        ({"a": _entry(), "b": _entry()}, "other bytes than 'b' needs"),
        ({"a": _entry(data_offsets=[0, 4], shape=[1])}, "a truncated or damaged file"),
        ({"a": _entry(data_offsets=[0, 10**9], shape=[25 * 10**7])}, "a truncated or damaged file"),
        ({"a": [1]}, "an object at 'a'"),
    ],
)
def test_headers_that_do_not_fit_their_files_are_refused(header: dict[str, Any], words: str, tmp_path: Path) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(UnsmoothError, match=words):
        read_header(tmp_path / "a")


@pytest.mark.parametrize("length", [0, 1, 9, 2**40, 2**64 - 1])
def test_lengths_of_headers_are_not_believed(length: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(length.to_bytes(8, "little") + b"{}" + bytes(3))
    with pytest.raises(UnsmoothError, match=r"safetensors file|JSON in"):
        read_header(tmp_path / "a")


@pytest.mark.parametrize(
    "change",
    [{"image": 4096 * 4}, {"depth": 10**9}, {"dim": 10**7, "heads": 1}, {"hidden": 10**15}, {"classes": 2**62}],
)
def test_some_bytes_of_configuration_take_no_memory(change: dict[str, int], tmp_path: Path) -> None:
    networks.save_network(networks.build(SMALL), tmp_path)
    described = json.loads((tmp_path / "network.json").read_text()) | change
    (tmp_path / "network.json").write_text(json.dumps(described))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnsmoothError):
        unsmooth.load(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize(
    "change",
    [{"num_hidden_layers": 10**9}, {"num_hidden_layers": 4_000}, {"hidden_size": 10**7}, {"num_labels": 10**9}],
)
def test_configurations_of_transformers_take_no_memory(
    change: dict[str, int], bert_folder: Path, tmp_path: Path
) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((bert_folder / name).read_bytes())
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnsmoothError):
        unsmooth.load(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


def test_networks_are_counted_while_they_are_built() -> None:
    with no_larger(2, 40), torch.device("meta"):
        nn.Linear(4, 2)
    with pytest.raises(UnsmoothError, match="more than 72 tensors"), no_larger(2, 40), torch.device("meta"):
        nn.Sequential(*(nn.Linear(1, 1) for _ in range(10**9)))
    with pytest.raises(UnsmoothError, match="numbers"), no_larger(2, 40), torch.device("meta"):
        nn.Linear(10**6, 10**6)
    nn.Sequential(*(nn.Linear(1, 1) for _ in range(99)))  # outside, nothing is counted


def test_gguf_headers_are_counted(tmp_path: Path) -> None:
    from tests.models.checkpoints import save_gguf

    path = tmp_path / "a.gguf"
    tensors = save_gguf(path)
    header = read_gguf_header(path)
    assert {name: tuple(reversed(one.shape)) for name, one in tensors.items()} == header.shapes
    content = path.read_bytes()
    for at, number in ((8, 2**62), (16, 2**62), (4, 9)):
        broken = bytearray(content)
        broken[at : at + 8] = number.to_bytes(8, "little")
        path.write_bytes(broken)
        with pytest.raises(UnsmoothError, match="a truncated or damaged file"):
            read_gguf_header(path)
    path.write_bytes(content[:200])
    with pytest.raises(UnsmoothError, match="a truncated or damaged file"):
        read_gguf_header(path)
