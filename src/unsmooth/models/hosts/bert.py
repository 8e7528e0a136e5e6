"""BERT (Devlin et al. 2019, arXiv 1810.04805): post-norm, separate query, key and value."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.anatomy import HOSTS, Host, Tap


def bert_taps(block: nn.Module) -> Mapping[str, Tap]:
    """BERT adds the stream and normalises inside its two `output` modules, so the branches end in their `dense`."""
    return {
        "normed": Tap("attention.self", "input"),
        "attention": Tap("attention.output.dense", "output"),
        "mid": Tap("attention.output", "output"),
        "mlp": Tap("output.dense", "output"),
    }


HOSTS.add("bert", Host(name="bert", blocks=("BertLayer",), taps=bert_taps, example="bert-base-uncased, all-MiniLM-L6-v2"))
