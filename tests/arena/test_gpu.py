"""An arena on a GPU: captured steps are timed beside each other, and memory is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.arena.tiny_arenas import carried_out, plan, smallest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


def test_runs_go_side_by_side_and_tell_their_memory(tmp_path: Path) -> None:
    base = smallest(engine__device="cuda", engine__deterministic=False)
    lines, _ = carried_out(plan("deescalate", base=base), tmp_path)
    for line in lines.values():
        assert line.done
        assert not line.failures
        assert line.timing is not None
        assert line.timing.memory is not None
        assert line.timing.memory > 0
        assert line.timing.ratio > 0
