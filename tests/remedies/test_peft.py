"""Remedies and adapters, where PEFT is at hand."""

from __future__ import annotations

import pytest

from tests.apart import PATIENCE, run_checks


@pytest.mark.timeout(PATIENCE + 60)
def test_peft() -> None:
    """In a process that has it, as it is no part of the environment."""
    run_checks("peft", "peft", "tests/remedies/peft_checks.py")
