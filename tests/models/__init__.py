"""Tests of unsmooth.models."""
