"""Masked language modelling: stretches of a text with a quarter of their tokens hidden, and logits only at those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth import keyed
from unsmooth.networks.config import EncoderConfig
from unsmooth.training.config import Config
from unsmooth.training.data.tokenizing import MASK, SPECIAL
from unsmooth.training.place import Place
from unsmooth.training.task import TASKS, in_full, summed_over_processes
from unsmooth.training.tasks.batches import dealt, spread
from unsmooth.training.tasks.texts import TextTask
from unsmooth.training.tasks.windows import Shuffled, open_windows

_MASKED, _CHANGED = 0.8, 0.9


class Masked(NamedTuple):
    """Sequences with hidden tokens.

    Args:
        inputs: (batch, tokens) ids that the model sees.
        at: (batch, K) int64: places whose tokens it is asked for.
        targets: (batch, K) the tokens that are there.
    """

    inputs: Tensor
    at: Tensor
    targets: Tensor


def places_hidden(tokens: int, share: float) -> int:
    """How many tokens of a sequence are asked for; at least one.

    >>> places_hidden(128, 0.25), places_hidden(3, 0.1)
    (32, 1)
    """
    return max(1, round(share * tokens))


def hide_tokens(ids_BN: Tensor, keys_B: Tensor, *, share: float, vocabulary: int) -> Masked:
    """Hide exactly `share` of every sequence: of these, 80 % become [MASK], 10 % another token, 10 % stay.

    All three are exact in every sequence, up to rounding, as in the collator of Crammed BERT (Geiping & Goldstein 2022,
    arXiv 2212.14034), so shapes are fixed. Other than there, a random token is never special.

    Args:
        ids_BN: Token ids.
        keys_B: A key of `unsmooth.keyed` for each sequence, which alone decides what is hidden in it.
        share: Of all tokens.
        vocabulary: Random tokens are below it, and not special.

    >>> hidden = hide_tokens(torch.arange(5, 25)[None], torch.tensor([7]), share=0.25, vocabulary=30)
    >>> hidden.at.tolist(), hidden.targets.tolist()
    ([[2, 9, 0, 11, 8]], [[7, 14, 5, 16, 13]])
    >>> hidden.inputs[0, hidden.at[0]].tolist()
    [4, 4, 4, 4, 13]
    """
    tokens = ids_BN.shape[1]
    count = places_hidden(tokens, share)
    hashes_BN = keyed.derive(keyed.keys(keys_B, 0), tokens)
    # Two hashes may be equal; with its place behind it none is, and every device sorts alike.
    named_BN = hashes_BN * tokens + torch.arange(tokens, device=ids_BN.device)
    at_BK = named_BN.topk(count, dim=1, largest=False, sorted=True).indices
    targets_BK = ids_BN.gather(1, at_BK)
    others_BK = len(SPECIAL) + keyed.integers(keyed.derive(keyed.keys(keys_B, 1), count), vocabulary - len(SPECIAL))
    # The places are in the order of their hashes, which is any order: the first of them are as good as any.
    rank_K = torch.arange(count, device=ids_BN.device)
    seen_BK = torch.where(rank_K < round(_CHANGED * count), others_BK.to(ids_BN.dtype), targets_BK)
    seen_BK = torch.where(rank_K < round(_MASKED * count), torch.full_like(seen_BK, MASK), seen_BK)
    return Masked(ids_BN.scatter(1, at_BK, seen_BK), at_BK, targets_BK)


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
