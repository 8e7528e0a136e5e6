from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import unsmooth
from tests.training.tiny_runs import tiny
from unsmooth.remedies import applied
from unsmooth.training.finishing import write_final
from unsmooth.training.folder import RunFolder
from unsmooth.training.place import Place
from unsmooth.training.run import Run


def after_steps(folder: Path, **changes: Any) -> Run:
    settings = {"checkpoint_every": 0.0, "evaluate_every": 0.0, "log_every": 9, **changes}
    run = Run(tiny(**settings), RunFolder(folder), Place(torch.device("cpu")))
    for _ in range(2):
        run.advance()
    return run


@pytest.mark.parametrize("remedies", [(), ("sharpen(basis=orthogonal)", "deescalate(tau=0.5)")])
def test_what_was_trained_is_what_is_loaded(tmp_path: Path, remedies: tuple[str, ...]) -> None:
    run = after_steps(tmp_path, remedies=remedies)
    before = {name: value.clone() for name, value in run.engine.model.state_dict().items()}
    write_final(run.engine, run._at_rest, run.folder)
    assert run.engine.model.training
    found = run.engine.model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in before.items()), "writing does not change the run"
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for folder, average in ((run.folder.final, False), (run.folder.average, True)):
        loaded = unsmooth.load(folder)
        assert [one.name for one in applied(loaded)] == [remedy.partition("(")[0] for remedy in remedies]
        with run._at_rest(average=average) as model, torch.no_grad():
            torch.testing.assert_close(loaded(images), model(images), rtol=1e-6, atol=1e-6)
    with run._at_rest() as plain, torch.no_grad():
        last = plain(images)
    assert not torch.allclose(unsmooth.load(run.folder.average)(images), last, atol=1e-5)


def test_an_unfinished_folder_is_replaced_and_nothing_is_left_over(tmp_path: Path) -> None:
    run = after_steps(tmp_path, ema=0.0)
    run.folder.final.mkdir()
    (run.folder.final / "model.safetensors").write_text("half of it")
    write_final(run.engine, run._at_rest, run.folder)
    assert {"model.safetensors", "network.json"} <= {path.name for path in run.folder.final.iterdir()}
    assert not run.folder.average.exists()
    assert not [path for path in tmp_path.glob(".*") if path.name != ".lock"]
    unsmooth.load(run.folder.final)


def test_an_error_while_looking_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    run = after_steps(tmp_path, remedies=("sharpen(basis=orthogonal)",))
    before = {name: value.clone() for name, value in run.engine.model.state_dict().items()}

    def look() -> None:
        with run._at_rest(average=True):
            raise KeyError

    with pytest.raises(KeyError):
        look()
    found = run.engine.model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in before.items())
    assert run.engine.model.training
