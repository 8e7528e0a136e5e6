"""Fine-tuning on one task of SuperGLUE (Wang et al. 2019, arXiv 1905.00537), as the Crammed BERT code base does it.

Hyper-parameters as in its public configuration (JonasGeiping/cramming: eval/superGLUE.yaml and eval/optim/adam.yaml):
AdamW with learning rate 1e-5 and no weight decay, 10 epochs in batches of 16, a cosine after a tenth of warm-up,
dropout 0.1, the first token classified behind a linear map and a tanh. Here texts are cut to the length that the
encoder was trained with.

``--set tasks=cb`` names the task, ``--set encoder=RUN/final`` the encoder to start from, whose architecture, tokenizer
and remedies come with it; `network` is only what is built where no encoder is named, to see what that alone gets.
"""

from __future__ import annotations

from dataclasses import replace

from unsmooth.training.config import Config, OptimiserConfig, Schedule
from unsmooth.training.recipes.cram_bert import cram_bert
from unsmooth.training.recipes.recipe import RECIPES, Size


def superglue(size: Size = "base") -> Config:
    """Ten epochs on one task, CB unless told otherwise."""
    start = cram_bert(size)
    base = replace(
        start,
        recipe="superglue",
        task="superglue",
        network=replace(start.network, dropout=0.1, length=128),  # type: ignore[arg-type]
        data=replace(start.data, name="superglue", tasks=("cb",), test_limit=None),
        steps=None,
        epochs=10,
        batch=16,
        micro_batch=None,
        ramp=0.0,
        optimiser=OptimiserConfig(lr=1e-5, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.0),
        schedule=Schedule(name="cosine", warmup=1),
        measuring=replace(start.measuring, every=1, at=()),
        log_every=5,
        evaluate_every=1,
        checkpoint_every=1,
    )
    if size == "base":
        return base
    # New weights in a small model: they have further to go than trained ones.
    return replace(base, epochs=5, optimiser=replace(base.optimiser, lr=1e-3))


RECIPES.add("superglue", superglue)
