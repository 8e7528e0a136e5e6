"""The authors' own code of seven remedies, run beside ours."""
