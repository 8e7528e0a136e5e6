"""The shell for Lightning, under both of its names."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from tests.monitor.training import DIM, TOKENS, hooks, make, same
from unsmooth import Monitor
from unsmooth.monitor import lightning as shell
from unsmooth.monitor import read_watched

pytest.importorskip("lightning")


def module_of(lightning, calls_a_part):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = make()

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, index):
            return (self.net if calls_a_part else self)(batch[0]).square().mean()

        def validation_step(self, batch, index):
            self(batch[0])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return Module()


def run(lightning, tmp_path, monitor=None, calls_a_part=False, **options):
    torch.manual_seed(0)
    x = torch.randn(24, TOKENS, DIM)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, 0, 0]), batch_size=4)
    module = module_of(lightning, calls_a_part)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[monitor.for_lightning()] if monitor else [],
        **{"val_check_interval": 3, **options},
    )
    trainer.fit(module, data, data)
    return trainer, module


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
@pytest.mark.parametrize("calls_a_part", [False, True])
def test_the_same_bits_with_a_validation_in_the_middle(name, calls_a_part, tmp_path, monkeypatch):
    lightning = import_module(name)
    monkeypatch.setattr(shell, "_NAMES", (name,))
    _, without = run(lightning, tmp_path, calls_a_part=calls_a_part)
    monitor = Monitor(every=2, out=tmp_path / "monitor")
    assert isinstance(monitor.for_lightning(), lightning.Callback)
    _, module = run(lightning, tmp_path, monitor, calls_a_part)
    assert same(module.state_dict(), without.state_dict())
    assert hooks(module) == 0
    found = read_watched(tmp_path / "monitor")
    assert ([reading.step for reading in found.readings], found.state) == ([1, 2, 4, 6], "finished")


def test_accumulated_batches_are_one_step_and_a_rule_stops(tmp_path):
    lightning = import_module("lightning.pytorch")
    monitor = Monitor(every=1, sinks=(), rules=[("mean_cosine@last > -2 for 1 step", "stop")])
    trainer, _ = run(lightning, tmp_path, monitor, accumulate_grad_batches=2, val_check_interval=1.0)
    assert trainer.global_step == monitor.last.step == 2


def test_an_exception_ends_the_monitor(tmp_path):
    lightning = import_module("lightning.pytorch")

    def fail(alarm):
        raise KeyboardInterrupt

    monitor = Monitor(every=2, probe=None, out=tmp_path / "monitor", rules=[("mean_cosine > -2", fail)])
    with pytest.raises(BaseException):  # noqa: B017, PT011 - Lightning's own, whatever it makes of Ctrl-C
        run(lightning, tmp_path, monitor)
    assert read_watched(tmp_path / "monitor").state == "stopped"


def test_without_lightning_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(shell, "_NAMES", ("no_such_lightning",))
    with pytest.raises(ValueError, match=r"unsmooth\[lightning\]"):
        Monitor(make()).for_lightning()


def test_a_module_without_forward(tmp_path):
    """Its training_step calls a part; that part is watched."""
    lightning = import_module("lightning.pytorch")
    monitor = Monitor(every=2, out=tmp_path / "run")
    torch.manual_seed(0)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.head = make(), torch.nn.Linear(1, 1)

        def training_step(self, batch, index):
            return self.head(self.net(batch[0])).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, TOKENS, DIM)), batch_size=4)
    module, quiet = Module(), {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    callbacks = [monitor.for_lightning()]
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", enable_checkpointing=False, callbacks=callbacks, **quiet
    )
    trainer.fit(module, data)
    assert monitor.last is not None
    assert monitor.last.step == 4
    assert not hooks(module)
