"""Fine-tuning on a made-up SuperGLUE whose rules can be learned in a minute."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import unsmooth
from tests.training.tasks.building import FLOAT64, SMALL, built, here, loss_at, network_of
from unsmooth.errors import UnsmoothError
from unsmooth.networks import Classifier, Encoder, EncoderConfig, save_network
from unsmooth.training import TASKS
from unsmooth.training.config import Config, DataConfig
from unsmooth.training.data.tokenizing import ByteTokenizer
from unsmooth.training.place import Place
from unsmooth.training.tasks import superglue
from unsmooth.training.tasks.superglue import start_encoder

ANSWERS = ("entailment", "contradiction", "neutral")
SIGNS = ("yes", "no", "so")


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def glue(workplace: Path) -> Path:
    """CB: a word of the premise is the answer. COPA: the right choice says "good"."""
    folder = workplace / "superglue"
    for split, count in (("train", 48), ("val", 25)):
        rows = [
            {"premise": SIGNS[i % 3], "hypothesis": "x" * (1 + i % 4), "label": ANSWERS[i % 3]} for i in range(count)
        ]
        write(folder / "CB" / f"{split}.jsonl", rows)
        choices = [{"choice1": "good", "choice2": "bad"}, {"choice1": "bad", "choice2": "good"}]
        asked = {"premise": "why", "question": "cause"}
        write(folder / "COPA" / f"{split}.jsonl", [{**asked, **choices[i % 2], "label": i % 2} for i in range(count)])
        pair = {"premise": "a", "hypothesis": "b"}
        write(folder / "RTE" / f"{split}.jsonl", [{**pair, "label": "entailment"}] * count)
    sentences = {"sentence1": "a", "sentence2": "b"}
    write(folder / "AX-b" / "AX-b.jsonl", [{**sentences, "label": label} for label in ("entailment", "not_entailment")])
    return folder


def glue_config(folder: Path, task: str, **changes: Any) -> Config:
    config = Config(
        recipe="test",
        task="superglue",
        network=EncoderConfig(vocabulary=261, length=64, **SMALL),
        data=DataConfig(name="superglue", path=str(folder), tasks=(task,)),
        epochs=1,
        batch=16,
        engine=FLOAT64,
    )
    return dataclasses.replace(config, **changes)


@pytest.mark.parametrize(("name", "majority"), [("cb", 9 / 25), ("copa", 13 / 25)])
def test_a_plain_rule_is_learned(glue: Path, name: str, majority: float) -> None:
    task = built(glue_config(glue, name))
    model = network_of(task)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    for batch in range(100):
        optimiser.zero_grad()
        loss_at(task, model, batch).backward()
        optimiser.step()
    found = task.evaluate(model.eval())
    assert found["accuracy"] == 1.0
    assert found["loss"] < 0.3
    assert found["majority_accuracy"] == pytest.approx(majority)
    if name == "cb":
        assert found["f1_macro"] == 1.0
        assert found["majority_f1_macro"] < 0.2


def test_texts_are_padded_to_one_length_and_padding_is_not_read(glue: Path) -> None:
    task = built(glue_config(glue, "cb"))
    rows = task.train_rows  # type: ignore[attr-defined]
    assert rows.ids.shape == (48, 1, 1 + 3 + 1 + 4 + 1)  # [CLS] yes [SEP] xxxx [SEP], the longest
    first = [2, *(5 + byte for byte in b"yes"), 3, 5 + ord("x"), 3]
    assert rows.ids[0, 0].tolist() == [*first, 0, 0, 0]
    model = network_of(task).eval()
    ids, mask = rows.inputs(torch.tensor([0]))
    alone = model(torch.tensor([first]))
    torch.testing.assert_close(model(ids, mask), alone, rtol=0, atol=1e-12)


def test_candidates_share_a_softmax(glue: Path) -> None:
    task = built(glue_config(glue, "copa"))
    model = network_of(task).eval()
    loss = loss_at(task, model, 0)
    rows, chosen = task.train_rows, task.order.take(torch.tensor(0))  # type: ignore[attr-defined]
    nats = []
    for one in chosen.tolist():
        ids = rows.ids[one].long()
        scores = [model(row[None], (row != 0)[None]).item() for row in ids]
        nats.append(torch.tensor(scores, dtype=torch.float64).logsumexp(0) - scores[int(rows.labels[one])])
    assert loss.item() == pytest.approx(torch.stack(nats).mean().item(), abs=1e-12)


def test_two_processes_see_what_one_sees(glue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = glue_config(glue, "copa")
    config = dataclasses.replace(config, network=dataclasses.replace(config.network, dropout=0.2))
    one = built(config)
    halves = [built(config, here(rank, 2)) for rank in (0, 1)]
    model = network_of(one)
    parts = [loss_at(half, model, 1) for half in halves]
    assert abs((parts[0] + parts[1]) / 2 - loss_at(one, model, 1)).item() < 1e-12
    model.eval()
    whole, sums = one.evaluate(model), list[torch.Tensor]()

    def summed(own: torch.Tensor, place: Place) -> torch.Tensor:
        sums.append(own)
        return torch.stack(sums).sum(0)

    monkeypatch.setattr(superglue, "summed_over_processes", summed)
    halves[1].evaluate(model)
    assert halves[0].evaluate(model) == pytest.approx(whole, abs=1e-12)


def test_diagnostics_are_learned_from_rte(glue: Path) -> None:
    task = built(glue_config(glue, "axb"))
    assert task.describe()["train"] == 48
    assert task.describe()["test"] == 2
    assert set(task.evaluate(network_of(task).eval())) >= {"matthews", "loss", "accuracy", "majority_accuracy"}


@pytest.mark.parametrize("remedies", [(), ("deescalate",)])
def test_starts_from_a_trained_encoder(glue: Path, workplace: Path, remedies: tuple[str, ...]) -> None:
    kept = Encoder(EncoderConfig(vocabulary=261, length=32, depth=3, dim=24, heads=2, hidden=8), seed=5)
    folder = workplace / "final"
    if remedies:
        unsmooth.apply(kept, remedies[0])
        unsmooth.remedies.save(kept, folder)
    else:
        save_network(kept, folder)
    ByteTokenizer(special=True).save(folder)
    config = glue_config(glue, "cb")
    config = dataclasses.replace(
        config,
        network=dataclasses.replace(config.network, dropout=0.25),
        data=dataclasses.replace(config.data, encoder=str(folder)),
    )
    found = start_encoder(config)
    assert found.config == dataclasses.replace(kept.config, dropout=0.25)
    for name, value in kept.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name
    assert [one.name for one in unsmooth.remedies.applied(found)] == list(remedies)
    task = TASKS["superglue"](config, here(), 16)
    model = network_of(task)
    assert isinstance(model, Classifier)
    assert model.head.out_features == 3
    loss_at(task, model, 0).backward()
    missing = [name for name, one in model.named_parameters() if one.requires_grad and one.grad is None]
    assert not missing


def test_bad_input_is_one_line(glue: Path, workplace: Path) -> None:
    config = glue_config(glue, "cb")
    with pytest.raises(UnsmoothError, match=r"one task of SuperGLUE but got none. Try --set tasks=cb"):
        built(dataclasses.replace(config, data=dataclasses.replace(config.data, tasks=())))
    with pytest.raises(UnsmoothError, match="`unsmooth data get superglue`, or --data DIR"):
        built(dataclasses.replace(config, data=dataclasses.replace(config.data, path=None)))
    with pytest.raises(UnsmoothError, match="a folder with a trained encoder but got 'nowhere'"):
        built(dataclasses.replace(config, data=dataclasses.replace(config.data, encoder="nowhere")))
    (workplace / "empty").mkdir()
    with pytest.raises(UnsmoothError, match=r"Expected network.json and .* in 'empty' but got no network.json"):
        built(dataclasses.replace(config, data=dataclasses.replace(config.data, encoder="empty")))
