"""Pages of made-up claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.evidence.fake_entries import fake_entries, fake_store, hostile_entry
from unsmooth.evidence import Entry, Store
from unsmooth.report.evidence import write_evidence_report


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return fake_store(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def entries(store: Store) -> list[Entry]:
    return fake_entries(store)


@pytest.fixture(scope="session")
def reports(store: Store, entries: list[Entry], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Takes the place of the pages of scans that other tests of the report open."""
    pytest.importorskip("altair", reason="the report extra is not installed")
    pytest.importorskip("vl_convert", reason="the report extra is not installed")
    folder = tmp_path_factory.mktemp("pages")
    nothing = Store(folder)
    return {
        "ledger": write_evidence_report(entries, folder / "ledger.html", store),
        "hostile": write_evidence_report([hostile_entry(store)], folder / "hostile.html", nothing),
        "empty": write_evidence_report(entries[3:], folder / "empty.html", nothing),
    }
