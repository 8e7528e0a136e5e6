"""SuperGLUE as the Hugging Face hub has it, back in the form of the official files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from unsmooth.training.data.hub import open_hub
from unsmooth.training.data.superglue import GlueTask

Row = Mapping[str, Any]
_SPLITS = {"train": "train", "val": "validation", "test": "test"}
_UNKNOWN = -1


def splits_from_hub(name: str, task: GlueTask) -> dict[str, list[str]]:
    """The lines of the official files of a task, by split.

    Args:
        name: Of the data set on the hub, which has a configuration for each task.
        task: Which one.
    """
    found = open_hub(name, task.name)
    restored = _RESTORED.get(task.name, _plain)
    return {
        split: [json.dumps(row, ensure_ascii=False) for row in restored(found[theirs], task)]
        for split, theirs in _SPLITS.items()
        if theirs in found
    }


def _plain(rows: Iterable[Row], task: GlueTask) -> Iterable[dict[str, Any]]:
    for row in rows:
        yield {key: value for key, value in row.items() if key != "label"} | _label(row, task)


def _label(row: Row, task: GlueTask) -> dict[str, Any]:
    """The label as the files spell it; the hub has numbers, and −1 where it is not public."""
    return {} if row["label"] == _UNKNOWN else {"label": task.labels[row["label"]]}


def _wsc(rows: Iterable[Row], task: GlueTask) -> Iterable[dict[str, Any]]:
    for row in rows:
        target = {key: row[key] for key in ("span1_index", "span1_text", "span2_index", "span2_text")}
        yield {"text": row["text"], "target": target, "idx": row["idx"]} | _label(row, task)


def _multirc(rows: Iterable[Row], task: GlueTask) -> Iterable[dict[str, Any]]:
    passages: dict[int, dict[str, Any]] = {}
    questions: dict[tuple[int, int], dict[str, Any]] = {}
    for row in rows:
        place = row["idx"]
        passage = passages.setdefault(
            place["paragraph"], {"idx": place["paragraph"], "passage": {"text": row["paragraph"], "questions": []}}
        )
        key = place["paragraph"], place["question"]
        if key not in questions:
            questions[key] = {"question": row["question"], "answers": [], "idx": place["question"]}
            passage["passage"]["questions"].append(questions[key])
        questions[key]["answers"].append({"text": row["answer"], "idx": place["answer"]} | _label(row, task))
    return passages.values()


def _record(rows: Iterable[Row], task: GlueTask) -> Iterable[dict[str, Any]]:
    for row in rows:
        spans = row["entity_spans"]
        # The hub's ends lie behind the last character, the files' on it.
        entities = [{"start": a, "end": b - 1} for a, b in zip(spans["start"], spans["end"], strict=True)]
        question: dict[str, Any] = {"query": row["query"], "idx": row["idx"]["query"]}
        if row["answers"]:
            question["answers"] = [{"text": text} for text in row["answers"]]
        passage = {"text": row["passage"], "entities": entities}
        yield {"passage": passage, "qas": [question], "idx": row["idx"]["passage"]}


_RESTORED: dict[str, Callable[[Iterable[Row], GlueTask], Iterable[dict[str, Any]]]] = {
    "wsc": _wsc,
    "multirc": _multirc,
    "record": _record,
}
