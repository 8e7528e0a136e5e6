"""Three trained ViTs and 300 images, read by `unsmooth.models.demo`."""
