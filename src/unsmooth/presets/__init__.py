"""Published definitions by name: which metric, of which tokens, where in the network, averaged how, and says who."""

from unsmooth.presets.preset import PRESETS, Preset

__all__ = ["PRESETS", "Preset"]
