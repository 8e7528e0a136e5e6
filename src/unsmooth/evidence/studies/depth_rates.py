"""Which learning rate suits which deep model: every variant at every rate of one small grid.

The best rate differs between variants, and at a common one a comparison would be one of rates. These runs have a seed
of their own, which is never scored: a rate that was lucky here has no luck to bring along. They are evaluated on the
test images all the same, as the scored ones are: what suits these images by chance is chosen with the rate, by every
variant from equally many. (`data.hold_out` is younger than these runs.)
"""

from __future__ import annotations

from typing import ClassVar

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.rates import PROBE_SEED
from unsmooth.evidence.studies.depth import rates, settings, variants
from unsmooth.evidence.study import Study, study
from unsmooth.training import Config

SEED = PROBE_SEED


@study
class DepthRates(Study):
    """Variants "post-24@0.0003": a model at a learning rate."""

    name: ClassVar[str] = "depth_rates"
    about: ClassVar[str] = (
        "ViTs of 12, 24 and 40 blocks on CIFAR-10, post-norm, pre-norm and remedied: learning rates, chosen by test "
        "accuracy of a seed that is not scored"
    )

    def configs(self, bench: Bench) -> dict[str, Config]:
        """Rates of one variant stand together, since they share what is compiled."""
        return {
            f"{variant}@{rate:g}": settings(variant, rate, bench)
            for variant in variants(bench)
            for rate in rates(bench)
        }

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        """One, which no claim is judged by."""
        return (SEED,)


def probed(bench: Bench) -> dict[str, dict[float, float]]:
    """Variant to learning rate to accuracy at the end."""
    found: dict[str, dict[float, float]] = {}
    for name, by_seed in bench.study(DepthRates.name).items():
        run = by_seed[SEED]
        found.setdefault(name.rpartition("@")[0], {})[float(run.config["optimiser"]["lr"])] = run.accuracy
    return found
