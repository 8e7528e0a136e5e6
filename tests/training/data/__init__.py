"""Tests of unsmooth.training.data."""
