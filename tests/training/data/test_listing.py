from __future__ import annotations

from pathlib import Path

from tests.training.data.conftest import Small
from unsmooth.training.data.get import get
from unsmooth.training.data.listing import Listed, listed


def of(out: Path, name: str) -> Listed:
    return next(each for each in listed(out) if each.name == name)


def test_states(small: Small, tmp_path: Path) -> None:
    out = tmp_path / "data"
    assert {each.state for each in listed(out)} == {"absent"}
    folder = get("cifar100", str(small.write(tmp_path / "source")), out)
    whole = of(out, "cifar100")
    assert (whole.state, whole.source, whole.problem) == ("whole", "source", "")
    assert whole.examples == {"train": 200, "test": 100}
    content = (folder / "test.bin").read_bytes()
    (folder / "test.bin").write_bytes(content[:-1])
    assert of(out, "cifar100").problem == "test.bin has 307399 bytes instead of 307400"
    (folder / "test.bin").write_bytes(b"\0" + content[1:])
    assert of(out, "cifar100").state == "broken"
    assert of(out, "cifar100").problem == "test.bin has another sha256"
    (folder / "test.bin").unlink()
    assert of(out, "cifar100").problem == "test.bin is missing"
    (folder / "dataset.json").write_text("{")
    assert of(out, "cifar100").problem == "dataset.json is broken"
    (folder / "dataset.json").unlink()
    assert of(out, "cifar100").state == "unchecked"
