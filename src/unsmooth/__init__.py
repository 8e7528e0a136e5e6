"""See, explain and steer how alike the tokens of a Transformer become with depth."""
