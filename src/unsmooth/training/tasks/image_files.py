"""Classifying images that do not fit into memory, such as ImageNet: decoded on the host, otherwise as `images`."""

from __future__ import annotations

from unsmooth.networks.config import ViTConfig
from unsmooth.training.data.locate import find_image_folders
from unsmooth.training.task import TASKS
from unsmooth.training.tasks.image_sources import ImageFiles, ImageSource
from unsmooth.training.tasks.images import ImageTask


class ImageFileTask(ImageTask):
    """`ImageTask` on folders of files; training images are random parts, resized, of the files."""

    name = "image_files"

    def open(self, network: ViTConfig) -> ImageSource:
        """List the files; synthetic images where there are none."""
        found = find_image_folders(self.config.data.name, self.config.data.path)
        if found is None:
            return super().open(network)
        return ImageFiles(*found, network.image, self.config, self.place, self.share)


TASKS.add("image_files", ImageFileTask)
