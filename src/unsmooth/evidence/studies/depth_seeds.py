"""Deep post-norm and pre-norm models, and remedies for them, each at its own best learning rate, over seeds.

The rate is the one with the highest accuracy among `depth_rates`. Those runs are evaluated on the same test images, as
nothing was held out when they were made, but have another seed: all variants have chosen from equally many rates.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.branches import branch_shares
from unsmooth.evidence.rates import best
from unsmooth.evidence.shown import Shown, eyes
from unsmooth.evidence.studies.depth import settings
from unsmooth.evidence.studies.depth_rates import probed
from unsmooth.evidence.study import Study, study
from unsmooth.training import Config

LOOKED_AT = 64


@study
class DepthSeeds(Study):
    """Variants "post-24": a model at the rate that suits it."""

    name: ClassVar[str] = "depth_seeds"
    about: ClassVar[str] = "The models of depth_rates, each at its own best rate: post-norm, pre-norm, remedied"

    def configs(self, bench: Bench) -> dict[str, Config]:
        """Looks at `depth_rates`, and trains that first where it is missing."""
        return {variant: settings(variant, best(by_rate), bench) for variant, by_rate in probed(bench).items()}

    def look(self, model: nn.Module, config: Config, device: torch.device) -> dict[str, Any]:
        """How much each branch adds to the stream, on some of the test images."""
        images, _ = Shown.of(config, device, LOOKED_AT).images()
        return {"branches": branch_shares(model, [eyes(config, device)(images)])}
