"""What can be learned, one file each."""

from unsmooth.training.tasks.images import ImageTask

__all__ = ["ImageTask"]
