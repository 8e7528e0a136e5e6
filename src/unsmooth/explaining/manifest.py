"""What an explanation was made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from unsmooth.explaining.evidence import ROW_SUM_TOLERANCE, Evidence
from unsmooth.explaining.result import VERDICTS
from unsmooth.models import Anatomy, weight_hash
from unsmooth.scanning.data import Source
from unsmooth.scanning.manifest import describe_data, describe_model, describe_versions, now


def build_manifest(
    module: nn.Module, stacks: Sequence[Anatomy], evidence: Sequence[Evidence], source: Source | None
) -> dict[str, Any]:
    """Model, data, definitions, versions."""
    longest = max(evidence, key=lambda one: len(one.digests))
    sequences, tokens = max(one.sequences for one in evidence), sum(one.tokens for one in evidence)
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    return {
        "made": now(),
        "model": describe_model(stacks, module, device, weight_hash(module)),
        "data": None if source is None else describe_data(source, longest.digests, sequences, tokens),
        "definitions": {
            "verdicts": dict(VERDICTS),
            "t_sim": "‖ΠX‖²/‖X‖², Π the mean over the tokens of a sequence that are not padding, special ones included",
            "logit_change": "change of log(‖ΠX‖²/‖(I − Π)X‖²) over a layer; tiers draw their tokens with seed 0",
            "aggregation": "means over sequences; σ is the median over tokens; spectra of the sequence in the middle",
            "attention": f"exact maps; left out where rows are more than {ROW_SUM_TOLERANCE:g} from summing to one",
        },
        "versions": describe_versions(),
    }
