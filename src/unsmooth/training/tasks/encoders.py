"""The encoder that a fine-tuning starts from: a trained one with its tokenizer and remedies, or a new one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from unsmooth.errors import expected
from unsmooth.networks.config import EncoderConfig
from unsmooth.networks.encoder import Classifier, Encoder
from unsmooth.networks.saving import load_network
from unsmooth.remedies.saving import RECORD, restore
from unsmooth.training.config import Config
from unsmooth.training.data.tokenizing import ByteTokenizer, Tokenizer, load_tokenizer, train_bpe


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
