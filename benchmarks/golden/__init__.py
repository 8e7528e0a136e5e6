"""The golden set: digests of exact values, by which a refactoring shows that it changed none."""
