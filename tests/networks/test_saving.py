"""A network is written, read again, and known to the rest of the library by its folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import unsmooth
from tests.networks.tiny import DECODER, ENCODER, VIT, inputs_of, outputs_of, shaken
from unsmooth import networks
from unsmooth.errors import UnsmoothError
from unsmooth.models import origin_of


@pytest.mark.parametrize("config", [VIT, ENCODER, DECODER], ids=lambda config: config.kind)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_comes_back_to_the_bit(config: networks.Config, dtype: torch.dtype, tmp_path: Path) -> None:
    network = shaken(networks.build(config)).to(dtype)
    networks.save_network(network, tmp_path)
    again = unsmooth.load(tmp_path)
    assert type(again) is type(network)
    assert again.config == config
    assert {key: value.dtype for key, value in again.state_dict().items()} == dict.fromkeys(network.state_dict(), dtype)
    assert torch.equal(outputs_of(again), outputs_of(network))
    assert not again.training
    assert origin_of(again).path == str(tmp_path)


def test_a_classifier_comes_back(tmp_path: Path) -> None:
    network = shaken(networks.Classifier(networks.Encoder(ENCODER), 3, pooling="mean", pooler=True))
    networks.save_network(network, tmp_path)
    again = unsmooth.load(tmp_path)
    ids = inputs_of(network.encoder)
    assert torch.equal(again(ids), network(ids))
    assert again.pooling == "mean"


def test_another_dtype_may_be_asked_for(tmp_path: Path) -> None:
    networks.save_network(networks.build(VIT), tmp_path)
    assert unsmooth.load(tmp_path, dtype="bfloat16").head.weight.dtype == torch.bfloat16


def test_transformers_is_not_needed(tmp_path: Path) -> None:
    networks.save_network(networks.build(VIT), tmp_path)
    script = (
        "import sys; sys.modules['transformers'] = None; import unsmooth, torch;"
        f"print(unsmooth.load({str(tmp_path)!r})(torch.zeros(1, 3, 8, 8)).shape)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.strip()) == (0, "torch.Size([1, 5])"), found.stderr


@pytest.mark.parametrize("remedy", ["sharpen", "rezero", "deescalate"])
def test_remedies_come_back(remedy: str, tmp_path: Path) -> None:
    network = shaken(networks.build(ENCODER))
    plain = {key: value.clone() for key, value in network.state_dict().items()}
    unsmooth.apply(network, remedy, **({"start": 0.3} if remedy == "rezero" else {}))
    unsmooth.remedies.save(network, tmp_path / "model")
    again = unsmooth.load(tmp_path / "model")
    assert [one.name for one in unsmooth.remedies.applied(again)] == [remedy]
    assert torch.equal(outputs_of(again), outputs_of(network))
    saved = load_file(tmp_path / "model" / "model.safetensors")
    assert saved.keys() == plain.keys()
    assert all(torch.equal(saved[key], plain[key]) for key in plain)


def test_images_are_scanned_from_a_folder(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    network = shaken(networks.build(VIT))
    networks.save_network(network, tmp_path / "model")
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)
    networks.Pixels(8, mean, std).save_pretrained(tmp_path / "model")
    (tmp_path / "images").mkdir()
    pixels = torch.randint(0, 256, (3, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for number, one in enumerate(pixels):
        image.fromarray(one.numpy()).save(tmp_path / "images" / f"{number}.png")
    by_hand = (pixels.permute(0, 3, 1, 2).double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(
        3, 1, 1
    )
    found = unsmooth.scan(unsmooth.load(tmp_path / "model"), tmp_path / "images")
    wanted = unsmooth.scan(network, by_hand.float())
    got, due = (scan.to_frame()["mean"].to_numpy() for scan in (found, wanted))
    assert len(due) > 3
    assert got == pytest.approx(due, rel=1e-4)


def test_texts_are_scanned_with_a_tokenizer_beside(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "a", "bird", "sings", "loud"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    network = shaken(networks.build(ENCODER))
    networks.save_network(network, tmp_path)
    made.save(str(tmp_path / "tokenizer.json"))
    loaded = unsmooth.load(tmp_path)
    assert origin_of(loaded).tokenizer.model_max_length == ENCODER.length
    found = unsmooth.scan(loaded, ["a bird sings", "a loud bird sings"])
    assert found.to_frame()["mean"].notna().all()


def broken(folder: Path) -> dict[str, Any]:
    def edit(**changes: Any) -> None:
        described = json.loads((folder / "network.json").read_text())
        (folder / "network.json").write_text(json.dumps(described | changes))

    return {
        "other depth": lambda: edit(depth=4),
        "other width": lambda: edit(classes=7),
        "unknown kind": lambda: edit(kind="vitt"),
        "unknown setting": lambda: edit(dept=3),
        "impossible": lambda: edit(heads=5),
        "no json": lambda: (folder / "network.json").write_text("{"),
        "no weights": (folder / "model.safetensors").unlink,
        "cut weights": lambda: (folder / "model.safetensors").write_bytes(
            (folder / "model.safetensors").read_bytes()[:-9]
        ),
    }


WORDS = {
    "other depth": "'stack.blocks.3.",
    "other width": "shape (5, 16) where (7, 16) is due",
    "unknown kind": "Did you mean 'vit'?",
    "unknown setting": "Did you mean 'depth'?",
    "impossible": "dim divisible by heads",
    "no json": "Expected JSON in",
    "no weights": "no model.safetensors",
    "cut weights": "a truncated or damaged file",
}


@pytest.mark.parametrize("how", list(WORDS))
def test_a_broken_folder_is_told_in_one_line(how: str, tmp_path: Path) -> None:
    networks.save_network(networks.build(VIT), tmp_path)
    broken(tmp_path)[how]()
    with pytest.raises(UnsmoothError) as found:
        unsmooth.load(tmp_path)
    assert WORDS[how] in str(found.value)
    assert "\n" not in str(found.value)


def test_other_modules_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match="a ViT, Encoder, Classifier or Decoder"):
        networks.save_network(nn.Linear(2, 2), tmp_path)
