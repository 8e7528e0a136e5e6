"""What can be learned, one file each."""

from unsmooth.training.task import TASKS
from unsmooth.training.tasks.images import ImageFileTask, ImageTask
from unsmooth.training.tasks.language import LanguageTask
from unsmooth.training.tasks.masked import MaskedTask
from unsmooth.training.tasks.superglue import SuperGlueTask

__all__ = ["TASKS", "ImageFileTask", "ImageTask", "LanguageTask", "MaskedTask", "SuperGlueTask"]
