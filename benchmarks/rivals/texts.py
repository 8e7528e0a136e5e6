"""Texts of a given number of tokens, as ids, so that every tool reads the very same."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from torch import Tensor

from unsmooth.cli.options import bundled_page


def token_ids(folder: Path, tokens: int, texts: int) -> Tensor:
    """Ids (texts, tokens) of the bundled prose, its sentences shuffled anew for each text, special tokens included."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    sentences = " ".join(bundled_page()).split(". ")
    generator = random.Random(0)
    pages = [". ".join(generator.sample(sentences, len(sentences))) for _ in range(texts)]
    return torch.tensor(tokenizer(pages, truncation=True, max_length=tokens)["input_ids"])
