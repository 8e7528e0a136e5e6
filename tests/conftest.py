"""Small models and texts that every room's tests share; nothing here needs a network."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
import torch

from tests.processor import leave_out_what_is_only_announced

# Tests must not wait for a hub that may not be there.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
torch.set_num_threads(1)
# A shell without job control starts what runs in its background with Ctrl-C ignored, and tests press it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
leave_out_what_is_only_announced()

WORDS = "the cat sat on a mat and saw one dog run past while rain fell over hills".split()
TEXTS = [
    "the cat sat on a mat",
    "one dog run past while rain fell over hills and the cat saw",
    "rain fell",
    "a dog sat on the cat while one mat saw hills",
    "the hills and the rain and the mat",
]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return list(TEXTS)


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with its tokenizer, saved the way a hub model is."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-bert")
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)
    torch.manual_seed(1234)  # not 0: that is the seed of a scan's random baseline
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def demo_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny runs laid out as those that the shipped models come from."""
    from tests.models.standins import train_runs

    return train_runs(tmp_path_factory.mktemp("demo-runs"))


@pytest.fixture(scope="session")
def demo_home(demo_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-ins for the shipped models, packed as those are."""
    from tests.models.standins import pack_standins

    return pack_standins(demo_runs, tmp_path_factory.mktemp("demo") / "models")


@pytest.fixture
def standins(demo_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-ins in the place of the shipped models."""
    from unsmooth.models import demo

    monkeypatch.setattr(demo, "HOME", demo_home)
    return demo_home


def pytest_collection_finish() -> None:
    """What is imported by now stays: the garbage collector need not walk over it again and again."""
    gc.collect()
    gc.freeze()
