"""The shell for Hugging Face's Trainer."""

from __future__ import annotations

import logging

import pytest
import torch

from tests.monitor.training import hooks, same
from unsmooth import Monitor
from unsmooth.monitor import read_watched

transformers = pytest.importorskip("transformers")


class Rows(torch.utils.data.Dataset):
    """Token ids of different length, the first row the longest."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(5, 20, (9 - index % 4,), generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": int(ids[0]) % 2}


def collate(rows):
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad([row["input_ids"] for row in rows], batch_first=True),
        "attention_mask": pad([row["attention_mask"] for row in rows], batch_first=True),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }


def run(folder, tmp_path, monitor=None, model=None, **options):
    torch.manual_seed(0)
    if model is None:
        model = transformers.BertForSequenceClassification.from_pretrained(folder)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "trainer"),
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        **{"max_steps": 6, "eval_strategy": "steps", "eval_steps": 3, **options},
    )
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=Rows(),
        eval_dataset=Rows(),
        data_collator=collate,
        callbacks=[monitor.for_trainer()] if monitor else [],
    )
    trainer.train()
    return trainer


def test_the_same_bits_with_an_evaluation_in_the_middle(bert_folder, tmp_path):
    without = run(bert_folder, tmp_path).model.state_dict()
    monitor = Monitor(every=2, out=tmp_path / "monitor", rules=["mean_cosine@last > -2 for 2 steps"])
    trainer = run(bert_folder, tmp_path, monitor)
    assert same(trainer.model.state_dict(), without)
    assert hooks(trainer.model) == 0
    found = read_watched(tmp_path / "monitor")
    assert [reading.step for reading in found.readings] == [1, 2, 4, 6]
    assert found.state == "finished"
    assert [row.layer for row in found.readings[-1].curve()] == [0, 1, 2, 3]
    assert len(monitor.alarms) == 1


@pytest.mark.parametrize("options", [{"gradient_checkpointing": True}, {"gradient_accumulation_steps": 2}])
def test_checkpointing_and_accumulation(bert_folder, tmp_path, options):
    monitor = Monitor(every=3, sinks=(), probe=None)
    trainer = run(bert_folder, tmp_path, monitor, **options)
    assert monitor.last.step == trainer.state.global_step == 6
    without = run(bert_folder, tmp_path, **options).model.state_dict()
    assert same(trainer.model.state_dict(), without)


def test_a_rule_stops_the_training(bert_folder, tmp_path):
    monitor = Monitor(every=2, sinks=(), rules=[("mean_cosine@last > -2 for 3 steps", "stop")])
    assert run(bert_folder, tmp_path, monitor).state.global_step == 4


def test_a_compiled_model_is_read_by_the_first_rows_of_its_data(bert_folder, tmp_path, caplog):
    monitor = Monitor(every=1, sinks=())
    options = {"torch_compile": True, "torch_compile_backend": "eager", "eval_strategy": "no", "max_steps": 1}
    with caplog.at_level(logging.WARNING, "unsmooth.monitor"):
        run(bert_folder, tmp_path, monitor, **options)
    assert monitor.last.step == 1
    assert not [record for record in caplog.records if record.name == "unsmooth.monitor"]
    torch._dynamo.reset()
