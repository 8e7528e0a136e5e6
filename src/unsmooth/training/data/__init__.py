"""Getting, checking and reading data: images, texts, SuperGLUE, and made-up data to try a recipe on."""
