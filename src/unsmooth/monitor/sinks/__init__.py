"""Where readings go, one file each; `SINKS` has them by name."""

from unsmooth.monitor.sinks import jsonl, tensorboard, wandb
from unsmooth.monitor.sinks.sink import SINKS, Card, Sink

__all__ = ["SINKS", "Card", "Sink", "jsonl", "tensorboard", "wandb"]
