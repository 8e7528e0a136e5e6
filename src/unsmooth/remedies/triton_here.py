"""Whether the kernels of remedies can be compiled here."""

from __future__ import annotations

import importlib.metadata

import torch


def _has_triton() -> bool:
    """Of NVIDIA's kind, and of a version that the kernels were tried with or a later one."""
    try:
        major, minor = importlib.metadata.version("triton").split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        return False
    return torch.version.hip is None and (int(major), int(minor)) >= (3, 5)


HAS_TRITON = _has_triton()
