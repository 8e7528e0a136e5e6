"""Transformer-XL on WikiText-103 (Dai et al. 2019, arXiv 1901.02860), its base model.

Hyper-parameters as in the authors' public script (kimiyoung/transformer-xl, pytorch/run_wt103_base.sh, and the defaults
of its train.py): 16 post-norm blocks, 10 heads of 41 dimensions, a memory as long as the segment of 150 tokens, Adam
with cosine decay and no warm-up, gradients clipped at 0.25.

What differs: the words and the adaptive softmax of the paper are replaced by a BPE of 32,768 tokens with a tied
softmax, so perplexities are per BPE token; compare bits per character. Nothing is dropped from the sinusoids; weights
start truncated at two standard deviations. Reads ``data/wikitext103`` or ``--data FOLDER`` with files named after
train, valid and test; any other text will do as well.
"""

from __future__ import annotations

import math
from dataclasses import replace

from unsmooth.networks.config import DecoderConfig
from unsmooth.training.config import Config, DataConfig, Engine, Measuring, OptimiserConfig, Schedule
from unsmooth.training.recipes.recipe import RECIPES, Size

NETWORK = DecoderConfig(
    vocabulary=32768,
    length=150,
    memory=150,
    depth=16,
    dim=410,
    heads=10,
    hidden=2100,
    norm="post",
    activation="relu",
    qkv_bias=False,
    out_bias=False,
    eps=1e-5,
    dropout=0.1,
    output_dropout=True,
    positions="relative",
    tied=True,
    embedding_scale=math.sqrt(410),
)


def xl_wt103(size: Size = "base") -> Config:
    """16 blocks, d 410, 200,000 steps of 60 segments of 150 tokens with a memory of 150."""
    base = Config(
        recipe="xl_wt103",
        task="language",
        network=NETWORK,
        data=DataConfig(name="wikitext103", tokenizer="bpe", vocabulary=32768),
        steps=200_000,
        batch=60,
        optimiser=OptimiserConfig(lr=2.5e-4, weight_decay=0.0, clip=0.25),
        schedule=Schedule(name="cosine"),
        measuring=Measuring(every=10_000, at=(100, 1000, 3000)),
        engine=Engine(precision="bfloat16"),
        log_every=200,
        evaluate_every=4000,
        checkpoint_every=2000,
    )
    return _tiny(base) if size == "tiny" else base


def _tiny(base: Config) -> Config:
    """The same on bytes, for a minute on two CPU cores.

    In few dimensions weights of 0.02 hardly move a token, and a post-norm model would not start: hence Xavier's.
    """
    small = replace(
        NETWORK,
        vocabulary=256,
        length=32,
        memory=32,
        depth=3,
        dim=64,
        heads=2,
        hidden=256,
        init="xavier",
        embedding_scale=8.0,
    )
    return replace(
        base,
        size="tiny",
        network=small,
        data=replace(base.data, tokenizer="bytes", test_limit=400),
        steps=400,
        batch=16,
        optimiser=replace(base.optimiser, lr=2e-3),
        schedule=replace(base.schedule, warmup=20),
        measuring=replace(base.measuring, every=200, at=(10, 30), sequences=32),
        engine=replace(base.engine, precision="float32"),
        log_every=10,
        evaluate_every=100,
        checkpoint_every=200,
    )


RECIPES.add("xl_wt103", xl_wt103)
