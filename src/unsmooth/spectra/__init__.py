"""Pure linear algebra of attention layers: eigenvalues, dominance, norms folded in; no models, no files.

The map that everything here is about is one attention layer with its attention held fixed, tokens as rows:
X ↦ X + Σ_h A_h X H_h with H_h = w_v[h] w_o[h] (P1, arXiv 2401.04301).
"""

from unsmooth.spectra.attention_spectrum import AttentionSpectrum, attention_spectrum
from unsmooth.spectra.flip_scale import flip_scale
from unsmooth.spectra.head_dominance import HeadDominance, head_dominance
from unsmooth.spectra.head_eigenvalues import head_eigenvalues
from unsmooth.spectra.head_shape import HeadShape, head_shape
from unsmooth.spectra.layer_dominance import layer_dominance
from unsmooth.spectra.layer_operator import LayerOperator
from unsmooth.spectra.norm_folding import fold_post_norm, fold_pre_norm, norm_factor
from unsmooth.spectra.random_markov import random_markov, random_second_eigenvalue, random_softmax
from unsmooth.spectra.shape import asymmetry, eigenvector_condition, numerical_range
from unsmooth.spectra.stack_growth import stack_growth
from unsmooth.spectra.summed import eigenvalues, extreme_modulus, summed_product
from unsmooth.spectra.token_mode import phase_cosine, token_modes
from unsmooth.spectra.verdict import Dominance, verdict_of

__all__ = [
    "AttentionSpectrum",
    "Dominance",
    "HeadDominance",
    "HeadShape",
    "LayerOperator",
    "asymmetry",
    "attention_spectrum",
    "eigenvalues",
    "eigenvector_condition",
    "extreme_modulus",
    "flip_scale",
    "fold_post_norm",
    "fold_pre_norm",
    "head_dominance",
    "head_eigenvalues",
    "head_shape",
    "layer_dominance",
    "norm_factor",
    "numerical_range",
    "phase_cosine",
    "random_markov",
    "random_second_eigenvalue",
    "random_softmax",
    "stack_growth",
    "summed_product",
    "token_modes",
    "verdict_of",
]
