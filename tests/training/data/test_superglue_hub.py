from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from unsmooth.training.data.superglue import TASKS, read_task
from unsmooth.training.data.superglue_hub import splits_from_hub

HUB: dict[str, list[dict[str, Any]]] = {
    "rte": [{"premise": "p", "hypothesis": "h", "idx": 0, "label": 1}],
    "boolq": [{"question": "q", "passage": "p", "idx": 0, "label": 1}],
    "wsc": [
        {"text": "Ann saw her .", "span1_index": 0, "span1_text": "Ann", "span2_index": 2, "span2_text": "her"}
        | {"idx": 0, "label": 0}
    ],
    "multirc": [
        {
            "paragraph": "P",
            "question": "Q",
            "answer": answer,
            "idx": {"paragraph": 0, "question": question, "answer": n},
        }
        | {"label": label}
        for n, (question, answer, label) in enumerate([(0, "yes", 1), (0, "no", 0), (1, "maybe", 1)])
    ],
    "record": [
        {"passage": "Bonn is small", "query": "@placeholder is small", "answers": ["Bonn"]}
        | {"entity_spans": {"text": ["Bonn"], "start": [0], "end": [4]}, "idx": {"passage": 3, "query": 5}}
    ],
}


@pytest.mark.parametrize("task", HUB)
def test_rows_of_the_hub_read_like_the_files(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("datasets")
    library.load_dataset = lambda name, which: {"validation": HUB[which]}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)
    splits = splits_from_hub("aps/super_glue", TASKS[task])
    assert set(splits) == {"val"}
    path = tmp_path / TASKS[task].folder / "val.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join(splits["val"]))
    examples = read_task(tmp_path, task, "val")
    found = [(example.texts[0], example.label) for example in examples]
    assert (
        found
        == {
            "rte": [(("p", "h"), 1)],
            "boolq": [(("q", "p"), 1)],
            "wsc": [(("Ann saw *her* .", "Ann"), 0)],
            "multirc": [(("P", "Q", "yes"), 1), (("P", "Q", "no"), 0), (("P", "Q", "maybe"), 1)],
            "record": [(("Bonn is small", "Bonn is small"), 1)],
        }[task]
    )
    if task == "multirc":
        assert [example.group for example in examples] == ["0-0", "0-0", "0-1"]


def test_labels_that_are_not_public_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("datasets")
    hidden = {"test": [HUB["rte"][0] | {"label": -1}]}
    library.load_dataset = lambda name, which: hidden  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)
    (line,) = splits_from_hub("aps/super_glue", TASKS["rte"])["test"]
    assert "label" not in json.loads(line)
