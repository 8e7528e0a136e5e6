"""What `sharpen` and `smooth` share: an output weight computed from the value weights, so that H has a given spectrum.

Tensors are named by their shapes: D is the width of the stream, G the value heads, E the width of one, M = G·E their
columns together, L layers. Weights are kept as rows: row i of an (M, D) tensor is column i of V.
"""

from unsmooth.remedies.spectral.edit import SpectralEdit

__all__ = ["SpectralEdit"]
