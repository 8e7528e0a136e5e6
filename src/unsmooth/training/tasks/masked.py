"""Masked language modelling: stretches of a text with a quarter of their tokens hidden, and logits only at those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth import keyed
from unsmooth.networks.config import EncoderConfig
from unsmooth.training.config import Config
from unsmooth.training.place import Place
from unsmooth.training.task import TASKS, in_full, summed_over_processes
from unsmooth.training.tasks.dealing import dealt, spread
from unsmooth.training.tasks.masking import Masked, hide_tokens
from unsmooth.training.tasks.texts import TextTask
from unsmooth.training.tasks.windows import Shuffled, open_windows

MASKED = 0.25
"""Share of tokens that are asked for, as in Crammed BERT (arXiv 2212.14034); BERT has 0.15."""

_EVALUATION_BATCH = 64


class MaskedTask(TextTask):
    """Mean cross-entropy over hidden tokens, in nats."""

    name = "masked"
    better: ClassVar[Mapping[str, bool]] = {"loss": False, "accuracy": True}
    special = True
    network_type = EncoderConfig

    def __init__(self, config: Config, place: Place, share: int) -> None:
        super().__init__(config, place, share)
        samples = len(spread(len(self.text.train) // self.length, config.data.train_limit))

        def starts(where: Place) -> Shuffled:
            return Shuffled(samples, self.length, share, config.seed, where)

        self.windows = open_windows(self.text.train, starts, self.length, place)
        self._masking = keyed.stream(config.seed, "mask")
        self._dropping = keyed.stream(config.seed, "drop")

    @property
    def batches(self) -> int:
        """Whole batches in an epoch."""
        return self.windows.starts.batches

    def begin(self, batch: int) -> None:
        """Shuffle, or bring the next sequences to the device."""
        self.windows.begin(batch)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Gather, hide, predict."""
        epoch = batch // self.batches
        starts_B, ids_BN = self.windows.take(batch)
        sample_B = starts_B // self.length
        hidden = self._hide(ids_BN, keyed.keys(self._masking, epoch, sample_B))
        logits = in_full(model(hidden.inputs, at=hidden.at, keys=keyed.keys(self._dropping, epoch, sample_B)))
        return F.cross_entropy(logits.flatten(0, 1), hidden.targets.flatten())

    def _hide(self, ids_BN: Tensor, keys_B: Tensor) -> Masked:
        return hide_tokens(ids_BN, keys_B, share=MASKED, vocabulary=self.text.vocabulary)

    def asked(self, sample_B: Tensor) -> Masked:
        """Sequences of the validation text, with the same tokens hidden in every run and at any moment."""
        ids_BN = self.text.valid.windows(sample_B * self.length, self.length).to(self.place.device)
        return self._hide(ids_BN, keyed.keys(keyed.stream(0, "evaluation mask"), sample_B.to(self.place.device)))

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Loss and accuracy on hidden tokens of the validation text, and the loss of token counts on the same ones."""
        samples = spread(len(self.text.valid) // self.length, self.config.data.test_limit)
        sums = torch.zeros(4, dtype=torch.float64, device=self.place.device)
        for part, weight in dealt(len(samples), _EVALUATION_BATCH, self.place):
            hidden = self.asked(samples[part])
            logits = in_full(model(hidden.inputs, at=hidden.at)).flatten(0, 1)
            targets = hidden.targets.flatten()
            nats = F.cross_entropy(logits, targets, reduction="sum").double()
            right = (logits.argmax(1) == targets).sum()
            sums += weight * torch.stack(
                [nats, right, self.unigram()[targets].sum(), torch.ones_like(nats) * len(targets)]
            )
        loss, right, unigram, count = summed_over_processes(sums, self.place).tolist()
        return {"loss": loss / count, "accuracy": right / count, "unigram_loss": unigram / count}


TASKS.add("masked", MaskedTask)
