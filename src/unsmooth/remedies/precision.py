"""Matrix products in full precision, whatever the model around them uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast and no TensorFloat-32: with 10 bits of mantissa V would be orthogonal to 1e-3 only.

    Not for code that is being compiled; there it belongs inside an operator of its own.
    """
    with torch.autocast(device.type, enabled=False):
        try:
            precision = torch.get_float32_matmul_precision()
        except RuntimeError:  # set by the newer names, which torch refuses to mix with the older ones
            with _without_tf32_by_new_names():
                yield
            return
        if precision == "highest":
            yield
            return
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)


@contextmanager
def _without_tf32_by_new_names() -> Iterator[None]:
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
