"""Where things are inside a network: blocks, sites, special tokens; and loading one by name."""

from unsmooth.models import hosts as _hosts  # noqa: F401 - registers every host
from unsmooth.models.anatomy import HOSTS, SITES, Anatomy, Host, Tap, Watch, find_anatomy

__all__ = ["HOSTS", "SITES", "Anatomy", "Host", "Tap", "Watch", "find_anatomy"]
