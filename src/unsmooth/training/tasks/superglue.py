"""Fine-tuning an encoder on one task of SuperGLUE (Wang et al. 2019, arXiv 1905.00537).

Texts are ``[CLS] a [SEP] b [SEP]``, cut and padded to one length for the whole run, so that a step can be captured.
Where the right one of several candidates is asked for (COPA), each candidate gets one number, with a softmax over them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth import keyed
from unsmooth.errors import expected
from unsmooth.networks.config import EncoderConfig
from unsmooth.networks.encoder import Classifier, Encoder
from unsmooth.networks.saving import load_network
from unsmooth.remedies.saving import RECORD, restore
from unsmooth.training.config import Config
from unsmooth.training.data.hold_out import nothing_left
from unsmooth.training.data.locate import find_superglue
from unsmooth.training.data.superglue import Example, read_task, split_examples, task_named
from unsmooth.training.data.superglue_scores import majority, score
from unsmooth.training.data.tokenizing import PAD, ByteTokenizer, Tokenizer, encode_segments, load_tokenizer, train_bpe
from unsmooth.training.order import Order
from unsmooth.training.place import Place
from unsmooth.training.task import TASKS, Task, in_full, summed_over_processes
from unsmooth.training.tasks.batches import dealt, in_parts, spread
from unsmooth.training.tasks.texts import check_vocabulary


def start_encoder(config: Config) -> Encoder:
    """The encoder in the folder ``data.encoder`` with the dropout of this run, or a new one.

    The folder's own architecture counts, whatever `config.network` says, and so do the remedies that it was trained
    with; remedies of this run come on top of them.
    """
    network = config.network
    if not isinstance(network, EncoderConfig):
        raise expected("an encoder to fine-tune", type(network).__name__, "network=EncoderConfig(…)")
    if config.data.encoder is None:
        return Encoder(network, config.seed)
    folder = Path(config.data.encoder)
    if not folder.is_dir():
        raise expected("a folder with a trained encoder", f"{str(folder)!r}, which is not there", "encoder=RUN/final")
    found = load_network(folder)
    if not isinstance(found, Encoder):
        raise expected(f"an encoder in {str(folder)!r}", type(found).__name__, "the run of a recipe such as cram_bert")
    encoder = Encoder(replace(found.config, dropout=network.dropout, drop_path=network.drop_path))
    encoder.load_state_dict(found.state_dict())
    return restore(encoder, folder, weights=False) if (folder / RECORD).is_file() else encoder


def start_tokenizer(config: Config, texts: Iterable[str]) -> Tokenizer:
    """The tokenizer beside the encoder; for a new encoder bytes, or a BPE learned from `texts`."""
    if config.data.encoder is not None:
        return load_tokenizer(config.data.encoder)
    if config.data.tokenizer == "bytes":
        return ByteTokenizer(special=True)
    return train_bpe(texts, config.data.vocabulary)


def classifier(encoder: Encoder, classes: int, seed: int) -> Classifier:
    """A classifier of the first token behind BERT's pooler; what only vocabulary logits need stays as it is."""
    model = Classifier(encoder, classes, pooling="first", pooler=True, seed=seed)
    unused = [encoder.head_weight, encoder.head_bias, *encoder.transform.parameters()]
    for parameter in unused:
        # Without a gradient, processes would wait for each other's in vain.
        if parameter is not None:
            parameter.requires_grad_(False)
    return model


_EVALUATION_BATCH = 64
# The diagnostics have no training set: models are trained on RTE, as on the official leaderboard.
_DIAGNOSTICS = ("axb", "axg")


class Rows(NamedTuple):
    """Examples as tensors on the device.

    Args:
        ids: (examples, candidates, length) int32, padded with 0, which no text has.
        labels: (examples,) int64.
    """

    ids: Tensor
    labels: Tensor

    def inputs(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and mask, (examples · candidates, length), of examples by number."""
        ids = self.ids[places].flatten(0, 1).long()
        return ids, ids != PAD


class SuperGlueTask(Task):
    """Cross-entropy over classes or candidates; the task's official metrics on its validation set."""

    name = "superglue"
    better: ClassVar[Mapping[str, bool]] = {"loss": False, "accuracy": True}
    holds_out = True

    def __init__(self, config: Config, place: Place, share: int) -> None:
        super().__init__(config, place, share)
        if len(config.data.tasks) != 1:
            raise expected("one task of SuperGLUE", config.data.tasks or "none", "--set tasks=cb")
        self.glue = task_named(config.data.tasks[0])
        diagnostic = self.glue.name in _DIAGNOSTICS
        folder = find_superglue(config.data.path)
        self.train = _some(read_task(folder, "rte" if diagnostic else self.glue.name), config.data.train_limit)
        if config.data.hold_out:
            self.train, test = self._split()
        else:
            test = read_task(folder, self.glue.name, "test" if diagnostic else "val")
        self.test = _some(test, config.data.test_limit)
        encoder = start_encoder(config)
        self.tokenizer = start_tokenizer(config, (text for one in self.train for part in one.texts for text in part))
        check_vocabulary(self.tokenizer.vocabulary, encoder.config.vocabulary)
        self._most = encoder.config.length
        self.train_rows, self.test_rows = self._encoded()
        self._digest = hashlib.sha256(repr((self.train, self.test)).encode()).hexdigest()
        self.order = Order(len(self.train), share, config.seed, place)
        self._dropping = keyed.stream(config.seed, "drop")

    def _split(self) -> tuple[list[Example], list[Example]]:
        """What is learned from, and what is held out in place of the validation set."""
        if self.glue.name in _DIAGNOSTICS:
            raise nothing_left("a task with training examples of its own", f"{self.glue.folder}, which has none")
        return split_examples(self.train, self.config.data.hold_out)

    def _encoded(self) -> tuple[Rows, Rows]:
        both = [[_candidates(self.tokenizer, one, self._most) for one in part] for part in (self.train, self.test)]
        longest = max(len(row) for part in both for candidates in part for row in candidates)
        found = []
        for examples, part in zip((self.train, self.test), both, strict=True):
            ids = torch.full((len(part), len(part[0]), longest), PAD, dtype=torch.int32)
            for place, candidates in enumerate(part):
                for candidate, row in enumerate(candidates):
                    ids[place, candidate, : len(row)] = torch.tensor(row)
            labels = torch.tensor([one.label for one in examples])
            found.append(Rows(ids.to(self.place.device), labels.to(self.place.device)))
        return found[0], found[1]

    @property
    def batches(self) -> int:
        """Whole batches in an epoch."""
        return self.order.batches

    def network(self) -> nn.Module:
        """The encoder with a new head."""
        return classifier(start_encoder(self.config), self.glue.classes, self.config.seed)

    def begin(self, batch: int) -> None:
        """Shuffle where an epoch begins."""
        self.order.begin(batch // self.batches)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Gather and classify."""
        chosen = self.order.take(batch % self.batches)
        candidates = torch.arange(self.train_rows.ids.shape[1], device=chosen.device)
        keys = keyed.keys(self._dropping, batch // self.batches, chosen[:, None], candidates).flatten()
        ids, mask = self.train_rows.inputs(chosen)
        return F.cross_entropy(self._logits(model(ids, mask, keys=keys)), self.train_rows.labels[chosen])

    def _logits(self, made: Tensor) -> Tensor:
        """(examples, classes), or (examples, candidates)."""
        return in_full(made.view(-1, self.train_rows.ids.shape[1]) if self.glue.choice else made)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Official metrics, loss and share of right labels; and what always saying the commonest label gets."""
        device, labels = self.place.device, self.test_rows.labels
        sums = torch.zeros(1 + len(labels), dtype=torch.float64, device=device)
        for part, weight in dealt(len(labels), _EVALUATION_BATCH, self.place):
            ids, mask = self.test_rows.inputs(torch.arange(part.start, part.stop, device=device))
            logits = self._logits(model(ids, mask))
            sums[0] += weight * F.cross_entropy(logits, labels[part], reduction="sum")
            sums[1 + part.start : 1 + part.stop] += weight * self._predicted(logits)
        loss, *predictions = summed_over_processes(sums, self.place).tolist()
        return {"loss": loss / len(labels), **self._scores(predictions)}

    def _predicted(self, logits: Tensor) -> Tensor:
        """The class; for ReCoRD how much likelier right than wrong, of which the highest of a question counts."""
        return logits[:, 1] - logits[:, 0] if self.glue.name == "record" else logits.argmax(1)

    def _scores(self, predictions: list[float]) -> dict[str, float]:
        labels = self.test_rows.labels.tolist()
        commonest = int(self.train_rows.labels.bincount().argmax())
        # Answers of ReCoRD are compared by number; for themselves, they are right or not from 0 on.
        said = [int(one > 0) for one in predictions] if self.glue.name == "record" else predictions
        found = {
            "accuracy": _share_equal(said, labels),
            "majority_accuracy": _share_equal([commonest] * len(labels), labels),
        }
        found |= score(self.glue.name, predictions, self.test)
        return found | {
            f"majority_{name}": value for name, value in majority(self.glue.name, self.train, self.test).items()
        }

    def probe(self, sequences: int) -> Any:
        """Texts of the validation set, evenly spread, each with its first candidate."""
        found = []
        for part in in_parts(spread(len(self.test), sequences).to(self.place.device)):
            ids = self.test_rows.ids[part, 0].long()
            found.append({"input_ids": ids, "attention_mask": (ids != PAD).long()})
        return found

    def describe(self) -> dict[str, Any]:
        """Which task, and how many examples."""
        return {
            "name": f"superglue/{self.glue.name}",
            "synthetic": False,
            "digest": self._digest,
            "train": len(self.train),
            "test": len(self.test),
            "length": self.train_rows.ids.shape[2],
            "encoder": self.config.data.encoder,
            **self.held_out(),
        }

    def save_beside(self, folder: Any) -> None:
        """Write the tokenizer."""
        self.tokenizer.save(Path(folder))


def _some(examples: list[Example], limit: int | None) -> list[Example]:
    return [examples[one] for one in spread(len(examples), limit).tolist()]


def _candidates(tokenizer: Any, example: Example, length: int) -> list[list[int]]:
    return [encode_segments(tokenizer, segments, length) for segments in example.texts]


def _share_equal(said: Sequence[float], labels: Sequence[int]) -> float:
    return sum(one == label for one, label in zip(said, labels, strict=True)) / len(labels)


TASKS.add("superglue", SuperGlueTask)
