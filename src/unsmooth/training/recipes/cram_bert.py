"""Crammed BERT (Geiping & Goldstein 2022, arXiv 2212.14034): an encoder pre-trained in one day on one GPU.

Hyper-parameters as in the authors' public configuration (JonasGeiping/cramming: arch/crammed-bert.yaml,
train/bert-o4.yaml and train/optim/adam.yaml): 16 pre-norm blocks without biases in linear maps, scaled sinusoids, a
norm on the embeddings, tied logits without a transform, a quarter of 128 tokens hidden, no dropout. Its gated MLP is
named by the width of `up`, 3,072, of which one half gates the other; `hidden` here is what `down` reads, 1,536.

What differs: the published budget is 24 hours, whatever was reached in them. Their configuration allows at most 900,000
micro-batches of 128 sequences; with the batch growing to 8,192 over the first 60 % of the run, 0.7 · 8,192 sequences a
step on average, that many sequences are 20,000 steps. The learning rate rises from a quarter of its peak to the peak
at three quarters of the run, as there. Weights start truncated at two standard deviations. Any text will do:
``--data``.
"""

from __future__ import annotations

from dataclasses import replace

from unsmooth.networks.config import EncoderConfig
from unsmooth.training.config import Config, DataConfig, Engine, Measuring, OptimiserConfig, Schedule
from unsmooth.training.recipes.recipe import RECIPES, Size

NETWORK = EncoderConfig(
    vocabulary=32768,
    length=128,
    depth=16,
    dim=768,
    heads=12,
    hidden=1536,
    norm="pre",
    activation="geglu",
    qkv_bias=False,
    out_bias=False,
    mlp_bias=False,
    eps=1e-12,
    positions="scaled_sinusoidal",
    tied=True,
    embedding_norm=True,
)


def cram_bert(size: Size = "base") -> Config:
    """16 blocks, d 768, BPE of 32,768 tokens, 20,000 steps in batches of up to 8,192 sequences of 128 tokens."""
    base = Config(
        recipe="cram_bert",
        task="masked",
        network=NETWORK,
        data=DataConfig(name="text", tokenizer="bpe", vocabulary=32768, test_limit=4096),
        steps=20_000,
        batch=8192,
        micro_batch=128,
        ramp=0.6,
        optimiser=OptimiserConfig(lr=1e-3, betas=(0.9, 0.98), eps=1e-12, weight_decay=0.01, clip=0.5),
        schedule=Schedule(name="triangular", warmup=15_000, initial=0.25),
        measuring=Measuring(every=1000, at=(10, 30, 100, 300)),
        engine=Engine(precision="bfloat16"),
        log_every=50,
        evaluate_every=1000,
        checkpoint_every=500,
    )
    return _tiny(base) if size == "tiny" else base


def _tiny(base: Config) -> Config:
    """The same on bytes, for a minute on two CPU cores; the gradual batch is kept.

    In few dimensions weights of 0.02 hardly move a token, and positions would drown it: hence Xavier's, and a scale.
    """
    small = replace(
        NETWORK,
        vocabulary=261,
        length=32,
        depth=3,
        dim=64,
        heads=2,
        hidden=128,
        init="xavier",
        embedding_scale=4.0,
    )
    return replace(
        base,
        size="tiny",
        network=small,
        data=replace(base.data, tokenizer="bytes", test_limit=512),
        steps=600,
        batch=32,
        micro_batch=8,
        optimiser=replace(base.optimiser, lr=3e-3),
        schedule=replace(base.schedule, warmup=100),
        measuring=replace(base.measuring, every=200, at=(10, 30), sequences=32),
        engine=replace(base.engine, precision="float32"),
        log_every=10,
        evaluate_every=100,
        checkpoint_every=200,
    )


RECIPES.add("cram_bert", cram_bert)
