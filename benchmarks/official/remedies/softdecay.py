"""SoftDecay in the last block of BERT."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.official.side_by_side import TOKENS, Case, Comparison, bert, edited, read, tokens
from benchmarks.official.sources import Source, definitions

REPOSITORY = ("hanqi-qi/tokenUni", "6f42c75b43154c6254b8f78164443243bbda70ff")
MODELS = "src/transformers/models"
FUNCTION = Source(
    *REPOSITORY, f"{MODELS}/soft_decay.py", "7194b4b3107b53208635b9fb515bffd2833823fb2af020fe2bf67c8092bff5c9"
)
LAYER = Source(
    *REPOSITORY, f"{MODELS}/transform_layer.py", "78d4e5218fd65c2c26018077286e8d82cf13332b7c5042999514f1cf54147198"
)
BERT = Source(
    *REPOSITORY, f"{MODELS}/bert/modeling_bert.py", "864e709458325205da74c5d9056f8348d6a1d2d5e816a61bf599015146caa48b"
)


class Output(nn.Module):
    """Theirs, called as today's BERT calls its own."""

    def __init__(self, output: Any, number: int) -> None:
        super().__init__()
        self.output, self.number = output, number

    def forward(self, hidden: Tensor, stream: Tensor) -> Tensor:
        """What the block hands on."""
        out: Tensor = self.output(hidden, stream, self.number)[0]
        return out


def cases(folder: Path, dtype: torch.dtype) -> list[Case]:
    """α as it starts there, and others."""
    return [_case(folder, dtype, alpha) for alpha in (-0.2, -0.6)]


def _case(folder: Path, dtype: torch.dtype, alpha: float) -> Case:
    function = definitions(FUNCTION.read(folder), ["soft_decay_function"]).soft_decay_function
    given = {"soft_decay_function": function, "Variable": _on_the_cpu}
    norms = definitions(LAYER.read(folder), ["LayerNormImpl", "NormFuncs"], given)
    code = definitions(BERT.read(folder), ["ExRank_gx", "BertOutput"], {"NormFuncs": norms.NormFuncs})
    plain = bert(dtype)
    theirs, config = copy.deepcopy(plain), copy.deepcopy(plain.config)
    config.lnv, config.max_length, config.max_seq_length = "soft_decay", TOKENS, TOKENS
    for number, layer in enumerate(theirs.encoder.layer):
        output = code.BertOutput(config).to(dtype)
        output.load_state_dict(layer.output.state_dict(), strict=False)
        output.exrank_layer.dropout.p = 0.0
        output.exrank_layer.LayerNorm.soft_decay.alpha.data.fill_(alpha)
        layer.output = Output(output.train(), number)
    ours, edits = edited(plain, "softdecay", variant="official", layers=[-1], alpha=alpha)
    assert len(edits) == 1
    return Case(f"α = {alpha}", read(theirs), read(ours), tokens(dtype))


def _on_the_cpu(tensor: Tensor, requires_grad: bool) -> SimpleNamespace:
    """Their module wants a GPU for a number that it never reads."""
    return SimpleNamespace(cuda=lambda: tensor)


COMPARISON = Comparison(
    "softdecay",
    [FUNCTION, LAYER, BERT],
    cases,
    "inside the logarithm they add 1e-7, and ours adds nothing",
)
