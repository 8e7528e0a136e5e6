"""The settings of a run, all of them: a recipe returns one `Config`, and a run's folder keeps it as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from unsmooth.errors import expected
from unsmooth.networks.config import DecoderConfig, EncoderConfig, ViTConfig
from unsmooth.training.augment.pipeline import AugmentConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What to learn from.

    Args:
        name: Name of a data set, such as "cifar100", or what to call a text.
        path: Where it is; None looks in ``data/`` and falls back on synthetic data, and says so.
        tokenizer: For texts: "bytes", or "bpe", trained on the text itself.
        vocabulary: For texts in BPE: how many tokens.
        train_limit: Use only so many training samples, equally many of each class where there are classes.
        test_limit: Likewise for evaluation.
        hold_out: Share of the training samples that is not learned from and takes the place of the test set in
            evaluations and measurements: of each class, or the end of a text. The same ones for every seed. Of what
            `train_limit` leaves; `test_limit` counts those held out.
        tasks: For SuperGLUE: which tasks.
        encoder: For SuperGLUE: folder of the encoder to start from; None starts from random weights.
    """

    name: str
    path: str | None = None
    tokenizer: Literal["bytes", "bpe"] = "bytes"
    vocabulary: int = 32768
    train_limit: int | None = None
    test_limit: int | None = None
    hold_out: float = 0.0
    tasks: tuple[str, ...] = ()
    encoder: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.hold_out < 1:
            what = "data.hold_out from 0 to below 1, a share of the training samples"
            raise expected(what, self.hold_out, "--set data.hold_out=0.1")


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101).

    Args:
        lr: Highest learning rate.
        betas: Decay of the running mean of gradients and of their squares.
        eps: Added to the root of the second.
        weight_decay: Per step and learning rate.
        decay_vectors: Whether biases, norm weights and other vectors decay too.
        clip: Largest norm of all gradients together; 0 does not clip.
    """

    lr: float = 1e-3
    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.05
    decay_vectors: bool = False
    clip: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.lr < math.inf:
            raise expected("a finite lr of 0 or more", self.lr, "--set lr=1e-3")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate over the run.

    Args:
        name: "cosine", "linear" (down), "triangular" (up and down) or "constant".
        warmup: Epochs, or steps where the run's length is given in steps, in which it rises.
        initial: Learning rate from which it rises, as a share of the highest.
        final: Learning rate at the end, as a share of the highest.
    """

    name: Literal["cosine", "linear", "triangular", "constant"] = "cosine"
    warmup: float = 0.0
    initial: float = 0.0
    final: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How alike tokens are while training. Always at the start and at the end.

    Args:
        every: Epochs (or steps where the run's length is given in steps) between measurements; 0 for none between.
        at: Further moments, in the same unit.
        sequences: Images or texts to measure on, of the test set or held out; 0 measures nothing at all, not even at
            the ends.
        metrics: As for `unsmooth.scan`; empty for its default set.
    """

    every: float = 0.0
    at: tuple[float, ...] = ()
    sequences: int = 64
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How the arithmetic is run; none of it changes what is computed, except in the last bits.

    Args:
        device: "auto" takes a GPU where there is one.
        precision: "bfloat16" multiplies in bfloat16 and keeps weights and sums in float32.
        compile: Whether torch.compile fuses blocks and augmentation: "on", "off", "auto" where the step is captured, or
            "whole" for the model as one, which takes longer to compile and a little less per step.
        graph: Whether the whole step is one CUDA graph; "auto" does so on one GPU.
        sharding: Under torchrun: "replicate" (DDP) or "shard" (FSDP2).
        deterministic: Refuse kernels whose sums depend on timing, so that two runs agree to the bit on a GPU too.
    """

    device: str = "auto"
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    compile: Literal["auto", "on", "off", "whole"] = "auto"
    graph: Literal["auto", "on", "off"] = "auto"
    sharding: Literal["replicate", "shard"] = "replicate"
    deterministic: bool = False


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run.

    Args:
        recipe: The recipe it came from.
        task: What is learned: a name in `unsmooth.training.TASKS`.
        network: The model.
        data: What it learns from.
        augment: What is done to images; None for texts.
        size: "base" or "tiny".
        seed: Of the weights, the order of samples and everything random.
        remedies: What `unsmooth.apply` takes, such as "deescalate(tau=0.5)", applied in this order.
        losses: What `unsmooth.losses.parse_loss` takes, such as "cosine(weight=0.1, layer=-1)", added to the task's own
            loss in training; the log's training loss is the sum, evaluations have the task's own.
        epochs: Length of the run; or
        steps: length of the run in steps. One of the two.
        batch: Samples per step, over all processes.
        micro_batch: Samples that one process takes at a time; the rest of the batch is accumulated. None: all of them.
        ramp: Share of the run over which the batch grows linearly from one micro-batch per process to `batch`.
        ema: Decay of a moving average of the weights that is evaluated too; 0 for none.
        repeats: Copies of each image in a batch, augmented differently (repeated augmentation, arXiv 1901.09335).
        log_every: Steps between lines in the log.
        evaluate_every: Epochs (or steps) between evaluations; always at the end.
        checkpoint_every: Epochs (or steps) between checkpoints; always at the end.
        optimiser: See there; so are schedule, measuring and engine.
    """

    recipe: str
    task: str
    network: ViTConfig | EncoderConfig | DecoderConfig
    data: DataConfig
    augment: AugmentConfig | None = None
    size: str = "base"
    seed: int = 0
    remedies: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    epochs: float | None = None
    steps: int | None = None
    batch: int = 96
    micro_batch: int | None = None
    ramp: float = 0.0
    ema: float = 0.0
    repeats: int = 1
    log_every: int = 50
    evaluate_every: float = 1.0
    checkpoint_every: float = 1.0
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedule: Schedule = field(default_factory=Schedule)
    measuring: Measuring = field(default_factory=Measuring)
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            got = "neither" if self.epochs is None else f"both ({self.epochs} and {self.steps})"
            raise expected(
                "epochs or steps, one of the two", got, "--set epochs=10, or --set epochs=none --set steps=1000"
            )
        for name, value in (("epochs", self.epochs), ("steps", self.steps), ("batch", self.batch)):
            if value is not None and not 0 < value < math.inf:
                raise expected(f"{name} above 0", value, f"--set {name}=1")
        if self.micro_batch is not None and not 0 < self.micro_batch <= self.batch:
            raise expected(f"a micro_batch from 1 to the batch of {self.batch}", self.micro_batch, "a smaller one")
        if not 0 <= self.ramp <= 1:
            raise expected("ramp from 0 to 1, a share of the run", self.ramp, "--set ramp=0.6")
        if self.log_every < 1 or self.repeats < 1:
            raise expected("log_every and repeats of at least 1", (self.log_every, self.repeats), "1")
