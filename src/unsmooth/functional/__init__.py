"""Pure functions of token vectors and attention maps: no state, no files, no model."""

from unsmooth.functional._metric import METRICS, BoundMetric, Metric, metric, parse_metric
from unsmooth.functional._occurrences import Occurrences
from unsmooth.functional._tokens import Tokens
from unsmooth.functional.attention_entropy import attention_entropy
from unsmooth.functional.attention_sink import attention_sink
from unsmooth.functional.cosine_quantile import cosine_histogram, cosine_quantile
from unsmooth.functional.dirichlet_energy import dirichlet_energy
from unsmooth.functional.effective_rank import effective_rank
from unsmooth.functional.escalation_rate import escalation_rate
from unsmooth.functional.feature_map_variance import feature_map_variance
from unsmooth.functional.head_similarity import head_similarity
from unsmooth.functional.hfc_lfc import hfc_lfc
from unsmooth.functional.intra_sentence_similarity import intra_sentence_similarity
from unsmooth.functional.isoscore import isoscore
from unsmooth.functional.linear_cka import linear_cka
from unsmooth.functional.maximum_explainable_variance import maximum_explainable_variance
from unsmooth.functional.mean_cosine import mean_cosine
from unsmooth.functional.mean_distance import mean_distance
from unsmooth.functional.numerical_rank import numerical_rank
from unsmooth.functional.participation_ratio import participation_ratio
from unsmooth.functional.random_pair_cosine import SequenceMeans, random_pair_cosine
from unsmooth.functional.rank_one_residual import rank_one_residual
from unsmooth.functional.relative_log_amplitude import log_amplitude_curve, relative_log_amplitude
from unsmooth.functional.self_similarity import self_similarity
from unsmooth.functional.singular_skewness import singular_skewness
from unsmooth.functional.stable_rank import stable_rank
from unsmooth.functional.token_diversity import token_diversity
from unsmooth.functional.token_similarity import token_similarity

__all__ = [
    "METRICS",
    "BoundMetric",
    "Metric",
    "Occurrences",
    "SequenceMeans",
    "Tokens",
    "attention_entropy",
    "attention_sink",
    "cosine_histogram",
    "cosine_quantile",
    "dirichlet_energy",
    "effective_rank",
    "escalation_rate",
    "feature_map_variance",
    "head_similarity",
    "hfc_lfc",
    "intra_sentence_similarity",
    "isoscore",
    "linear_cka",
    "log_amplitude_curve",
    "maximum_explainable_variance",
    "mean_cosine",
    "mean_distance",
    "metric",
    "numerical_rank",
    "parse_metric",
    "participation_ratio",
    "random_pair_cosine",
    "rank_one_residual",
    "relative_log_amplitude",
    "self_similarity",
    "singular_skewness",
    "stable_rank",
    "token_diversity",
    "token_similarity",
]
