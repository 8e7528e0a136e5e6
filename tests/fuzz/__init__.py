"""Fuzzing of readers and functionals: bounded in the tests, open-ended by ``make fuzz``."""
