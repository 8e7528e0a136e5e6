"""Where things are inside a network: blocks, sites, special tokens; and loading one by name."""

from unsmooth.models import hosts as _hosts  # noqa: F401 - registers every host
from unsmooth.models.anatomy import HOSTS, SITES, Anatomy, Host, Tap, Watch, find_anatomy, find_stacks
from unsmooth.models.attention_maps import NoAttentionMap, row_sum_error, watch_attention
from unsmooth.models.fingerprint import weight_hash
from unsmooth.models.load import load, model_of
from unsmooth.models.origin import Origin, origin_of
from unsmooth.models.randomise import with_random_weights
from unsmooth.models.special import special_ids
from unsmooth.models.value_projection import Norm, ValueProjection, value_projection

__all__ = [
    "HOSTS",
    "SITES",
    "Anatomy",
    "Host",
    "NoAttentionMap",
    "Norm",
    "Origin",
    "Tap",
    "ValueProjection",
    "Watch",
    "find_anatomy",
    "find_stacks",
    "load",
    "model_of",
    "origin_of",
    "row_sum_error",
    "special_ids",
    "value_projection",
    "watch_attention",
    "weight_hash",
    "with_random_weights",
]
