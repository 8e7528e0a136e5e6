"""Shards that somebody else wrote: whole ones are read, others refused in one line, and no code of theirs runs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import BytesStorageMetadata
from torch.distributed.checkpoint.state_dict_saver import save

from tests.training.test_resume import train_until
from tests.training.tiny_runs import assert_same_run, tiny
from unsmooth.errors import UnsmoothError
from unsmooth.training import resume, train
from unsmooth.training.checkpoint import Checkpoints, bytes_of, digest_of


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted, its checkpoint in shards."""
    out = tmp_path_factory.mktemp("cut") / "run"
    train_until(2, tiny(steps=3), out)
    checkpoints = Checkpoints(out / "checkpoints")
    found = checkpoints.latest()
    assert found is not None
    content, draft = found.read(), checkpoints.draft()
    save(content["state"], storage_writer=FileSystemWriter(draft), no_dist=True)
    (draft / "about.json").write_text(json.dumps(content["about"]))
    for path in (out / "checkpoints").glob("*.pt"):
        path.unlink()
    checkpoints.save_folder(found.step, draft)
    return out


def shards_of(run: Path) -> Path:
    return next((run / "checkpoints").glob("*.shards"))


def test_whole_shards_are_read_by_one_process(cut: Path, tmp_path: Path) -> None:
    shutil.copytree(cut, tmp_path / "run")
    resume(tmp_path / "run")
    train(tiny(steps=3), tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


class Runs:
    """A pickle of this makes a folder."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("made-by-a-pickle",)


def run_code(shards: Path) -> None:
    (shards / ".metadata").write_bytes(pickle.dumps(Runs()))


def point_outside(shards: Path) -> None:
    metadata = pickle.loads((shards / ".metadata").read_bytes())
    for place in metadata.storage_data.values():
        place.relative_path = "../../config.json"
    (shards / ".metadata").write_bytes(pickle.dumps(metadata))


def hold_other_than_tensors(shards: Path) -> None:
    metadata = pickle.loads((shards / ".metadata").read_bytes())
    first = next(iter(metadata.state_dict_metadata))
    metadata.state_dict_metadata[first] = BytesStorageMetadata()
    (shards / ".metadata").write_bytes(pickle.dumps(metadata))


def be_a_pipe(shards: Path) -> None:
    file = next(shards.glob("*.distcp"))
    file.unlink()
    os.mkfifo(file)


def be_packed(shards: Path) -> None:
    """All tensors in one zip file of zeros, as torch would unpack them."""
    file = next(shards.glob("*.distcp"))
    metadata = pickle.loads((shards / ".metadata").read_bytes())
    torch.save(torch.zeros(1 << 22), file)
    with zipfile.ZipFile(file) as whole:
        parts = {part.filename: whole.read(part) for part in whole.infolist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in parts.items():
            packed.writestr(name, content)
    for place in metadata.storage_data.values():
        place.offset, place.length = 0, file.stat().st_size
    (shards / ".metadata").write_bytes(pickle.dumps(metadata))


def be_cut_short(shards: Path) -> None:
    file = next(shards.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (run_code, "mkdir"),
        (point_outside, "Expected the name of a file in"),
        (hold_other_than_tensors, "BytesStorageMetadata"),
        (be_a_pipe, "Expected a regular file at .* but got a pipe"),
        (be_packed, "once unpacked"),
        (be_cut_short, "Expected tensors within the"),
    ],
)
def test_what_is_wrong_with_shards_is_one_line(
    cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(cut, tmp_path / "run")
    change(shards_of(run))
    shards = shards_of(run)
    index = {shards.name: {"bytes": bytes_of(shards), "sha256": digest_of(shards)}}  # those that belong to it
    (run / "checkpoints" / "index.json").write_text(json.dumps(index))
    with pytest.raises(UnsmoothError, match=said) as caught:
        resume(run)
    assert "\n" not in str(caught.value)
    assert not Path("made-by-a-pickle").exists()
