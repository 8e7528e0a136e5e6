"""What a scan does when things go wrong, and what it leaves behind: nothing."""

from __future__ import annotations

import gc
import signal
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import unsmooth
from unsmooth import UnsmoothError
from unsmooth.models import load
from unsmooth.scanning import ScanInterrupted, collect
from unsmooth.scanning.calling import EVERYTHING
from unsmooth.scanning.collect import Collector
from unsmooth.scanning.plan import check_metrics


class Stream(nn.Module):
    """A residual stream of `depth` blocks, each adding a linear map."""

    def __init__(self, dim: int = 8, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Poison(nn.Module):
    """Turns every sequence whose first value is above 100 into NaN."""

    def forward(self, x: Tensor) -> Tensor:
        bad = x[:, :1, :1] > 100
        return torch.where(bad, torch.nan, x)


def hooks_in(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_hooks_and_modes_are_put_back():
    model = Stream()
    model.layers[0].eval()
    before = [module.training for module in model.modules()]
    unsmooth.scan(model, torch.randn(4, 5, 8), blocks="layers.*", progress=False)
    assert hooks_in(model) == 0
    assert [module.training for module in model.modules()] == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_hooks_are_removed_after_an_exception():
    model = Stream()
    with pytest.raises(RuntimeError):
        unsmooth.scan(model, torch.randn(4, 5, 9), blocks="layers.*", progress=False)
    assert hooks_in(model) == 0
    assert model.training


def test_use_cache_is_put_back():
    import transformers

    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=50, n_positions=16, use_cache=True)
    model = transformers.GPT2Model(config)
    unsmooth.scan(model, torch.randint(5, 50, (2, 8)), progress=False)
    assert model.config.use_cache is True


def test_nan_activations_are_named_and_the_rest_survives():
    model = nn.Sequential(nn.Identity(), Poison(), nn.Identity())
    x = torch.randn(6, 5, 8)
    x[3] += 1000.0
    found = unsmooth.scan(model, x, blocks="*", batch_size=2, progress=False)
    assert not found.healthy
    note = next(note for note in found.notes if note.startswith("NaN"))
    assert "layer 2 (residual) in batch 1" in note
    assert "1 of 6 sequences" in note
    counts = [row.sequences for row in found.curve()]
    assert counts == [6, 6, 5, 5]
    clean = unsmooth.scan(model, torch.cat([x[:3], x[4:]]), blocks="*", progress=False)
    assert found.curve()[-1].mean == pytest.approx(clean.curve()[-1].mean, abs=1e-6)


def test_a_scan_of_nothing_but_nan_still_returns():
    found = unsmooth.scan(nn.Sequential(Poison()), torch.full((2, 4, 8), 200.0), blocks="*", progress=False)
    assert [row.sequences for row in found.curve()] == [2, 0]
    assert found.sentence.startswith("Activations were NaN or Inf, so no direction is told: too few layers")


def test_zero_tokens_are_counted():
    x = torch.randn(2, 6, 8)
    x[0, 2] = 0.0
    found = unsmooth.scan(nn.Sequential(nn.Identity()), x, blocks="*", progress=False)
    assert "1 of 12 tokens are exactly zero at layer 0" in " ".join(found.notes)


def test_single_token_sequences_are_left_out_and_said(bert_folder):
    found = unsmooth.scan(load(str(bert_folder)), ["cat", "the cat sat"], progress=False)
    assert {row.sequences for row in found.rows} == {1}
    assert "1 sequences of fewer than two tokens were left out." in found.notes


def test_only_short_texts_is_an_error(bert_folder):
    with pytest.raises(UnsmoothError, match="two or more tokens but got 2 shorter ones"):
        unsmooth.scan(load(str(bert_folder)), ["cat", "dog"], progress=False)


def test_a_mask_may_come_beside_any_model():
    x = torch.randn(2, 6, 8)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]).bool()

    class Named(Stream):
        def forward(self, values: Tensor) -> Tensor:
            return super().forward(values)

    garbage = torch.where(mask.unsqueeze(-1), x, torch.nan)
    found = unsmooth.scan(Named(), {"values": garbage, "token_mask": mask}, blocks="layers.*", progress=False)
    assert found.rows[0].tokens == 10
    assert found.healthy


@pytest.mark.parametrize("value", [0, 1])
def test_a_mask_of_the_wrong_length_is_refused(value):
    with pytest.raises(UnsmoothError, match="a mask for the 6 tokens"):
        unsmooth.scan(
            nn.Sequential(nn.Identity()),
            [{"input": torch.randn(2, 6, 8), "token_mask": torch.full((2, 4), value).bool()}],
            blocks="*",
            progress=False,
        )


def test_a_scan_is_shown_in_a_few_words():
    model = nn.Sequential(nn.Identity())
    found = unsmooth.scan(model, torch.randn(3, 4, 5), blocks="*", metrics=["hfc_lfc"], progress=False)
    assert repr(found) == f"Scan 'Sequential': hfc_lfc at residual, layers 0 to 1, 0 notes\n{found.sentence}"
    broken = replace(found, complete=False, healthy=False, rows=(), sentence="")
    assert repr(broken) == "Scan 'Sequential': hfc_lfc at residual, layers none, interrupted, with NaN or Inf, 0 notes"


def test_interruption_hands_over_what_is_done():
    def batches():
        yield torch.randn(2, 5, 8)
        yield torch.randn(2, 5, 8)
        raise KeyboardInterrupt

    model = Stream()
    with pytest.raises(ScanInterrupted) as stop:
        unsmooth.scan(model, batches(), blocks="layers.*", progress=False)
    assert stop.value.scan is not None
    assert not stop.value.scan.complete
    assert stop.value.scan.rows[0].sequences == 4
    assert hooks_in(model) == 0


def test_sigterm_is_an_interruption_where_nobody_else_handles_it():
    def batches():
        yield torch.randn(2, 5, 8)
        signal.raise_signal(signal.SIGTERM)
        yield torch.randn(2, 5, 8)

    with pytest.raises(ScanInterrupted) as stop:
        unsmooth.scan(Stream(), batches(), blocks="layers.*", progress=False)
    assert stop.value.scan.rows[0].sequences == 2
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        assert unsmooth.scan(Stream(), batches(), blocks="layers.*", progress=False).complete
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


@pytest.mark.parametrize("where", ["one_pass.hashing", "run.with_random_weights"])
def test_a_finished_pass_outlives_an_interruption_of_what_follows(where, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    made = nullcontext(interrupted) if where == "one_pass.hashing" else None
    monkeypatch.setattr(f"unsmooth.scanning.{where}", (lambda _: made) if made else interrupted)
    with pytest.raises(ScanInterrupted) as stop:
        unsmooth.scan(Stream(), torch.randn(4, 5, 8), blocks="layers.*", baseline=made is None, progress=False)
    assert stop.value.scan.rows[0].sequences == 4


def test_interruption_before_the_first_batch_has_nothing_to_hand_over():
    def batches():
        raise KeyboardInterrupt
        yield

    with pytest.raises(ScanInterrupted) as stop:
        unsmooth.scan(Stream(), batches(), blocks="layers.*", progress=False)
    assert stop.value.scan is None


def test_nothing_as_large_as_the_tokens_is_kept(monkeypatch):
    # Two batches wait for a third.
    monkeypatch.setattr(collect, "ENOUGH", 3 * 4 * 1500 * 8)
    collector = Collector(check_metrics(None), vocabulary=0, device=torch.device("cpu"))
    sizes = []
    for number in range(5):
        collector.begin(EVERYTHING)
        for layer in range(3):
            collector(layer, "residual", torch.randn(4, 1500, 8))
        collector.end(number)
        gc.collect()
        held = [item for item in gc.get_objects() if isinstance(item, Tensor) and 1500 in item.shape]
        sizes.append(sum(item.numel() for item in held))
        del held
    kept = 3 * (3 * 4 * 1500)  # norms and two sums over features, of three layers
    assert sizes == [0, kept, 2 * kept, 0, kept]


@pytest.mark.parametrize("sites", [("residual",), ("residual", "attention", "mlp", "mid", "normed")])
def test_random_baseline_is_the_same_architecture_without_training(bert_folder, texts, sites):
    model = load(str(bert_folder))
    found = unsmooth.scan(model, texts, baseline=True, sites=sites, progress=False)
    again = unsmooth.scan(model, texts, baseline=True, sites=sites, progress=False)
    assert found.baseline is not None
    assert again.baseline is not None
    assert found.baseline.rows == again.baseline.rows
    assert [(row.layer, row.site) for row in found.rows] == [(row.layer, row.site) for row in found.baseline.rows]
    assert found.curve()[-1].mean != found.baseline.curve()[-1].mean
    assert "random weights" in found.sentence
    hashes = [part.manifest["model"]["weights_sha256"] for part in (found, found.baseline)]
    assert hashes[0] != hashes[1]


def test_one_shot_data_has_no_baseline():
    with pytest.raises(UnsmoothError, match="read twice"):
        unsmooth.scan(Stream(), iter([torch.randn(2, 3, 8)]), blocks="layers.*", baseline=True, progress=False)


def test_loaders_with_labels_and_max_batches():
    loader = DataLoader(TensorDataset(torch.randn(10, 5, 8), torch.arange(10)), batch_size=2)
    found = unsmooth.scan(Stream(), loader, blocks="layers.*", max_batches=3, progress=False)
    assert found.rows[0].sequences == 6
    assert found.manifest["data"]["batches"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": ["mean_cosin"]}, "Did you mean 'mean_cosine'"),
        ({"metrics": ["mean_cosine(absolut=True)"]}, "Did you mean 'absolute'"),
        ({"metrics": ["attention_entropy"]}, "Linear blocks, whose attention is not known"),
        ({"metrics": []}, "at least one metric"),
        ({"metrics": [3]}, "metrics by name"),
        ({"metrics": 3}, "metrics by name"),
        ({"sites": 3}, "sites by name"),
        ({"sites": [3]}, "sites by name"),
        ({"preset": 3}, "a preset by name"),
        ({"sites": ["residul"]}, "Did you mean 'residual'"),
        ({"sites": ["mlp"]}, "a site that Linear blocks have"),
        ({"tokens": "contents"}, "Did you mean 'content'"),
        ({"max_batches": 0}, "max_batches of at least 1"),
        ({"batch_size": 0}, "batch_size of at least 1"),
        ({"batch_size": "16"}, "batch_size of at least 1 but got '16'"),
        ({"max_batches": True}, "max_batches of at least 1 but got True"),
        ({"blocks": "layer.*"}, "'layers.*'"),
    ],
)
def test_bad_requests_say_what_to_try(arguments, message):
    with pytest.raises(UnsmoothError) as error:
        unsmooth.scan(Stream(), torch.randn(2, 3, 8), progress=False, **{"blocks": "layers.*", **arguments})
    assert message in str(error.value)


def test_an_unknown_model_says_what_was_looked_for():
    with pytest.raises(UnsmoothError, match=r"it has no attention. Try blocks="):
        unsmooth.scan(Stream(), torch.randn(2, 3, 8), progress=False)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "at least one batch of data"),
        (torch.randn(0, 3, 8), "at least one sequence but got empty data"),
        ({"x": torch.randn(2, 3), "y": torch.randn(3, 3)}, "inputs that Stream takes (x) but got 'y'"),
        (3, "texts, images, arrays, a table"),
        ("no-such-file.txt", "an existing text file or folder"),
        (["a text"], "a tokenizer for texts"),
        ([object()], "batches that are tensors"),
        (iter([]), "at least one batch"),
    ],
)
def test_bad_data_says_what_to_try(data, message):
    with pytest.raises(UnsmoothError) as error:
        unsmooth.scan(Stream(), data, blocks="layers.*", progress=False)
    assert message in str(error.value)


def test_a_model_whose_depth_changes_is_refused():
    model = Stream(depth=2)

    def batches():
        yield torch.randn(2, 3, 8)
        model.layers = model.layers[:1]
        yield torch.randn(2, 3, 8)

    with pytest.raises(UnsmoothError, match="places of the first batch"):
        unsmooth.scan(model, batches(), blocks="layers.*", progress=False)
