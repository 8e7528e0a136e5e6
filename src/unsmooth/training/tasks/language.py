"""Language modelling with a memory (Transformer-XL; Dai et al. 2019, arXiv 1901.02860).

The text is cut into as many streams as a batch has rows. Each row reads its stream segment by segment, and what its
attention read of the segment before is its memory. Memories are emptied where an epoch begins anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth import keyed
from unsmooth.errors import expected
from unsmooth.networks.config import DecoderConfig
from unsmooth.networks.relative import Memory
from unsmooth.training.config import Config
from unsmooth.training.data.text import Tokens
from unsmooth.training.place import Place
from unsmooth.training.task import TASKS, in_full, summed_over_processes
from unsmooth.training.tasks.batches import dealt
from unsmooth.training.tasks.texts import TextTask
from unsmooth.training.tasks.unigram import token_bytes
from unsmooth.training.tasks.windows import Streams, open_windows

# Streams side by side in an evaluation, each with at least a few segments, so that memory counts.
_EVALUATION_STREAMS, _SEGMENTS = 64, 4


class LanguageTask(TextTask):
    """Mean cross-entropy of the next token, in nats."""

    name = "language"
    better: ClassVar[Mapping[str, bool]] = {"loss": False, "bits_per_character": False, "perplexity": False}
    special = False
    network_type = DecoderConfig

    def __init__(self, config: Config, place: Place, share: int) -> None:
        super().__init__(config, place, share)
        if config.ramp:
            raise expected("ramp=0: each row of the batch is a stream", config.ramp, "--set ramp=0")
        tokens = _limited(len(self.text.train), config.data.train_limit, self.length)

        def starts(where: Place) -> Streams:
            return Streams(tokens, config.batch, self.length, share, where)

        self.windows = open_windows(self.text.train, starts, self.length + 1, place)
        # The rows of all processes, so that a checkpoint has them; each process keeps only its own up to date.
        self.rows = Streams(tokens, config.batch, self.length, share, place)
        self.memory = self._empty(config.batch)
        self._dropping = keyed.stream(config.seed, "drop")

    def _empty(self, rows: int) -> Memory | None:
        network = self.config.network
        assert isinstance(network, DecoderConfig)
        if not network.memory:
            return None
        # In the dtype of the weights, also where products are in bfloat16: so are the tokens that are remembered.
        states = torch.zeros(network.depth, rows, network.memory, network.dim, dtype=self.dtype)
        return Memory(states.to(self.place.device), torch.zeros(rows, dtype=torch.int64, device=self.place.device))

    @property
    def batches(self) -> int:
        """Micro-batches of all processes until every stream is read once."""
        return self.rows.batches

    def begin(self, batch: int) -> None:
        """Bring the next segments to the device, where the text is not there."""
        self.windows.begin(batch)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Read a segment of each stream, and remember it."""
        _, ids_BN = self.windows.take(batch)
        rows_B, segment = self.rows.rows(batch), self.rows.segment(batch)
        keys = keyed.keys(self._dropping, batch // self.batches, segment, rows_B)
        logits, after = model(ids_BN[:, :-1], self._recalled(rows_B, segment), keys=keys)
        self._remember(rows_B, after)
        return F.cross_entropy(in_full(logits).flatten(0, 1), ids_BN[:, 1:].flatten())

    def _recalled(self, rows_B: Tensor, segment: Tensor) -> Memory | None:
        """A copy, because the backward pass needs it after the next memory is in its place."""
        if self.memory is None:
            return None
        filled_B = self.memory.filled.index_select(0, rows_B)
        return Memory(self.memory.states.index_select(1, rows_B), filled_B * (segment != 0))

    @torch.no_grad()
    def _remember(self, rows_B: Tensor, after: Memory | None) -> None:
        if self.memory is not None and after is not None:
            self.memory.states.index_copy_(1, rows_B, after.states.to(self.dtype))
            self.memory.filled.index_copy_(0, rows_B, after.filled)

    def state(self) -> dict[str, Tensor]:
        """The memories of all rows. Every process has to ask, because each has some of them."""
        if self.memory is None:
            return {}
        if self.place.ranks > 1:
            others = torch.ones(len(self.memory.filled), dtype=torch.bool, device=self.place.device)
            others[self.rows.own()] = False
            self.memory.states[:, others] = 0
            self.memory.filled[others] = 0
            summed_over_processes(self.memory.states, self.place)
            summed_over_processes(self.memory.filled, self.place)
        return {"memory": self.memory.states, "filled": self.memory.filled}

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Loss over the validation text, read with memory, and that of token counts on the same tokens.

        Bits per character are bits per byte of text, as is usual for enwik8: nats / bytes / ln 2.
        """
        tokens = self.text.valid
        total = _limited(len(tokens), self.config.data.test_limit, self.length)
        streams = max(1, min(_EVALUATION_STREAMS, (total - 1) // (_SEGMENTS * self.length)))
        sums = torch.zeros(4, dtype=torch.float64, device=self.place.device)
        ((part, weight),) = dealt(streams, -(-streams // self.place.ranks), self.place)
        mine = torch.arange(streams)[part] * ((total - 1) // streams)
        sums += weight * self._read(model, tokens, mine, (total - 1) // streams)
        nats, unigram, size, count = summed_over_processes(sums, self.place).tolist()
        return {**_metrics("", nats, size, count), **_metrics("unigram_", unigram, size, count)}

    def _read(self, model: nn.Module, tokens: Tokens, starts_B: Tensor, length: int) -> Tensor:
        """Nats, nats by token counts, bytes and tokens of `length` predictions from each start on."""
        device, memory = self.place.device, self._empty(len(starts_B))
        sizes, sums = token_bytes(self.text.tokenizer).to(device), torch.zeros(4, dtype=torch.float64, device=device)
        for at in range(0, length, self.length):
            ids_BN = tokens.windows(starts_B + at, min(self.length, length - at) + 1).to(device)
            logits, memory = model(ids_BN[:, :-1], memory)
            targets = ids_BN[:, 1:].flatten()
            nats = F.cross_entropy(in_full(logits).flatten(0, 1), targets, reduction="sum").double()
            sums += torch.stack(
                [nats, self.unigram()[targets].sum(), sizes[targets].sum(), torch.ones_like(nats) * len(targets)]
            )
        return sums


def _limited(tokens: int, segments: int | None, length: int) -> int:
    return tokens if segments is None else min(tokens, segments * length + 1)


def _metrics(prefix: str, nats: float, size: float, count: float) -> dict[str, float]:
    return {
        f"{prefix}loss": nats / count,
        f"{prefix}bits_per_character": nats / size / math.log(2),
        f"{prefix}perplexity": math.exp(min(nats / count, 700.0)),  # past which it is no number
    }


TASKS.add("language", LanguageTask)
