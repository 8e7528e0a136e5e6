"""Tests of `unsmooth.explaining`."""
