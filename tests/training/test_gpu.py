"""The captured step computes what the uncaptured one does, and a run taken up on a GPU goes on to the bit."""

from pathlib import Path

import pytest
import torch

from unsmooth.training import RunFolder, recipe, train
from unsmooth.training.config import Config
from unsmooth.training.place import Place
from unsmooth.training.plain import override
from unsmooth.training.run import Run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


EXACT: dict[str, object] = {"engine.deterministic": True, "engine.compile": "off", "checkpoint_every": 1}


def _config(**changes: object) -> Config:
    tiny = recipe("vit_cifar100", "tiny")
    return override(tiny, {"data.name": "synthetic", "train_limit": 1000, "epochs": 3, "drop_path": 0.2, **changes})


def _weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder.final / "model.safetensors")


LOSSES = ("cosine", "cosine(absolute=True)", "layer_contrast(weight=0.1)", "laplacian", "dispersion(layer=1)")


@pytest.mark.parametrize("more", [{}, {"micro_batch": 25}, {"ema": 0.9}, {"losses": LOSSES}])
def test_captured_equals_uncaptured(tmp_path: Path, more: dict[str, object]) -> None:
    losses = {}
    for graph in ("on", "off"):
        (folder,) = train(_config(**{"engine.graph": graph, "engine.compile": "off"}, **more), tmp_path / graph)
        losses[graph] = folder.manifest()["last"]["evaluation/loss"]
        assert folder.manifest()["captured"] == (graph == "on")
    assert losses["on"] == pytest.approx(losses["off"], abs=2e-3)


def test_compiled_learns_as_uncompiled_does(tmp_path: Path) -> None:
    found = [
        train(_config(**{"engine.compile": wish}), tmp_path / wish)[0].manifest()["last"]["evaluation/loss"]
        for wish in ("on", "off")
    ]
    assert found[0] == pytest.approx(found[1], abs=5e-3)


@pytest.mark.parametrize("remedies", [(), ("sharpen",), ("deescalate",)])
def test_taken_up_to_the_bit(tmp_path: Path, remedies: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    config = _config(
        remedies=remedies, **{"engine.deterministic": True, "engine.compile": "off", "checkpoint_every": 1}
    )
    (whole,) = train(config, tmp_path / "whole")
    broken = RunFolder(tmp_path / "broken")
    broken.create(config)
    from unsmooth.training.driving import reproducible
    from unsmooth.training.verbs import resume

    with reproducible(config):
        run = Run(config, broken, Place(torch.device("cuda")))
        for _ in range(13):  # past a checkpoint, before the next
            run.advance()
        del run
    resume(broken.path)
    for name, value in _weights(whole).items():
        assert torch.equal(value, _weights(broken)[name]), name


def test_seeds_side_by_side_are_those_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    config = _config(**EXACT)
    together = train(config, tmp_path / "both", seeds=2)
    (alone,) = train(override(config, {"seed": 1}), tmp_path / "alone")
    for name, value in _weights(alone).items():
        assert torch.equal(value, _weights(together[1])[name]), name
