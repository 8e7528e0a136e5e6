"""What tasks on texts share: the text, checks that it fits the network, windows to measure on, the tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from unsmooth.errors import expected
from unsmooth.networks.config import DecoderConfig, EncoderConfig
from unsmooth.training.config import Config
from unsmooth.training.data.locate import find_text
from unsmooth.training.data.text import Text, check_length, end_held_out
from unsmooth.training.place import Place
from unsmooth.training.task import Task
from unsmooth.training.tasks.batches import in_parts, spread
from unsmooth.training.tasks.unigram import unigram_nats


class TextTask(Task):
    """A task on one long text.

    Args:
        config: The run.
        place: This process.
        share: Sequences that this process takes at a time.
    """

    holds_out = True
    special: ClassVar[bool]
    """Whether ids are needed that no text has, such as that of [MASK]."""

    network_type: ClassVar[type[EncoderConfig | DecoderConfig]]

    def __init__(self, config: Config, place: Place, share: int) -> None:
        super().__init__(config, place, share)
        network = config.network
        if not isinstance(network, self.network_type):
            wanted = self.network_type.__name__
            raise expected(f"a network of {wanted} for the task {self.name!r}", type(network).__name__, f"{wanted}(…)")
        assert isinstance(network, EncoderConfig | DecoderConfig)
        self.length = network.length
        self.text = self._open()
        check_vocabulary(self.text.vocabulary, network.vocabulary)
        check_length(self.text, self.length)
        self._unigram: Tensor | None = None

    def _open(self) -> Text:
        """Encode the text once, in the first process; the others find what it wrote."""
        if not self.place.first:
            self.place.wait()
        data = self.config.data
        text = find_text(
            data.name, data.path, tokenizer=data.tokenizer, vocabulary=data.vocabulary, special=self.special
        )
        if self.place.first:
            self.place.wait()
        return end_held_out(text, data.hold_out, self.length, data.train_limit) if data.hold_out else text

    def unigram(self) -> Tensor:
        """−ln p of each token by its count in the training text; counted when first asked for."""
        if self._unigram is None:
            self._unigram = unigram_nats(self.text.train, self.text.vocabulary).to(self.place.device)
        return self._unigram

    def probe(self, sequences: int) -> Any:
        """Stretches of the validation text, evenly spread, as they are."""
        starts = spread(len(self.text.valid) // self.length, sequences) * self.length
        return [
            {"input_ids": self.text.valid.windows(part, self.length).to(self.place.device)} for part in in_parts(starts)
        ]

    def describe(self) -> dict[str, Any]:
        """Which text, in which tokens."""
        text = self.text
        return {
            "name": text.name,
            "synthetic": text.synthetic,
            "digest": text.digest,
            "train": len(text.train),
            "test": len(text.valid),
            "unit": "tokens",
            "tokenizer": self.config.data.tokenizer,
            "vocabulary": text.vocabulary,
            **self.held_out(),
        }

    def save_beside(self, folder: Any) -> None:
        """Write the tokenizer."""
        self.text.tokenizer.save(Path(folder))


def check_vocabulary(found: int, network: int) -> None:
    """Refuse ids that the network has no embedding for; a few embeddings too many do no harm."""
    if found > network:
        hint = f"--set network.vocabulary={found}"
        raise expected(f"a network with at least the tokenizer's {found} tokens", network, hint)
