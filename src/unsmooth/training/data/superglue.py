"""SuperGLUE (Wang et al. 2019, arXiv 1905.00537): eight tasks and two diagnostics in one form.

Every task becomes a list of `Example`. A model sees one or more candidate texts, each of them a few segments; what is
asked is the class of the only candidate, or which candidate is right (COPA). MultiRC and ReCoRD ask about each answer
for itself, and are scored by question.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unsmooth.errors import expected, unknown_name
from unsmooth.files import lines_of, open_file, parse_json
from unsmooth.training.data.hold_out import split_by_class
from unsmooth.training.data.images import missing

Segments = tuple[str, ...]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Example:
    """One thing that is asked.

    Args:
        texts: A text for each candidate, in segments.
        label: The class, or the place of the right candidate; None where it is not known.
        group: What is scored together: the question of an answer (MultiRC, ReCoRD), the pair of two sentences (AX-g).
        answer: ReCoRD: what this candidate says.
        gold: ReCoRD: the right answers of the question.
    """

    texts: tuple[Segments, ...]
    label: int | None
    group: str | None = None
    answer: str | None = None
    gold: tuple[str, ...] = ()


@dataclass(frozen=True)
class GlueTask:
    """A task of SuperGLUE.

    Args:
        name: As users write it.
        folder: As the official archive has it.
        labels: The classes by their number.
        metrics: What is reported, by the keys of `score`; their mean is the task's score.
        examples: From a line of the file to examples.
        sizes: Lines in the official files.
        choice: The label is the place of the right candidate.
    """

    name: str
    folder: str
    labels: tuple[Any, ...]
    metrics: tuple[str, ...]
    examples: Callable[[Row, GlueTask], Iterator[Example]]
    sizes: Mapping[str, int]
    choice: bool = False

    @property
    def classes(self) -> int:
        """How many classes a model tells apart; a choice takes one number per candidate.

        >>> TASKS["cb"].classes, TASKS["copa"].classes
        (3, 1)
        """
        return 1 if self.choice else len(self.labels)

    def label(self, row: Row) -> int | None:
        """The number of the class of a line; None where the line has none."""
        if "label" not in row:
            return None
        # JSON's true is 1 to Python: look at the text, so that a label of 1 is not taken for true.
        known = {json.dumps(label): number for number, label in enumerate(self.labels)}
        said = json.dumps(row["label"])
        if said not in known:
            raise ValueError(f"label {said}")
        return known[said]


def read_task(folder: str | Path, task: str, split: str = "train") -> list[Example]:
    """The examples of a split.

    Args:
        folder: Of SuperGLUE: with a folder for each task.
        task: A name in `TASKS`.
        split: "train", "val", "test", or "train32", a few-shot selection (Schick & Schütze 2021, arXiv 2009.07118).
            The diagnostics "axb" and "axg" only have "test".
    """
    chosen = task_named(task)
    path = find_split(Path(folder), chosen, split)
    if path is None:
        place = task_folder(Path(folder), chosen)
        there = [each for each in ("train", "train32", "val", "test") if find_split(Path(folder), chosen, each)]
        got = f"only {', '.join(there)}" if there else missing(place)
        hint = f"{'train32, or ' if 'train32' in there else ''}`unsmooth data get superglue` from a source that has it"
        raise expected(f"{split}.jsonl of {chosen.folder} in {place}", got, hint)
    found: list[Example] = []
    for number, row in numbered_rows(path):
        try:
            found += chosen.examples(row, chosen)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            got = f"{type(error).__name__} ({error}) in line {number} of {path}"
            raise expected(f"an example of {chosen.folder}", got, "`unsmooth data get superglue`") from None
    if not found:
        raise expected(f"examples of {chosen.folder} in {path}", "none", "`unsmooth data get superglue`")
    return found


def split_examples(examples: list[Example], share: float) -> tuple[list[Example], list[Example]]:
    """Examples to learn from and a share to hold out: of each label, or of passages where several share one.

    >>> answers = [Example(((passage, "?"),), 0, f"{passage}-1") for passage in "aabbccdd"]
    >>> [sorted({one.texts[0][0] for one in part}) for part in split_examples(answers, 0.25)]
    [['a', 'c', 'd'], ['b']]
    """
    if all(one.group is None for one in examples):
        places = split_by_class(torch.tensor([one.label for one in examples]), share)
        learned, held = ([examples[place] for place in part.tolist()] for part in places)
        return learned, held
    passages = list(dict.fromkeys(one.texts[0][0] for one in examples))
    _, held_out = split_by_class(torch.zeros(len(passages), dtype=torch.int64), share)
    chosen = {passages[place] for place in held_out.tolist()}
    return (
        [one for one in examples if one.texts[0][0] not in chosen],
        [one for one in examples if one.texts[0][0] in chosen],
    )


def task_named(name: str) -> GlueTask:
    """A task by its name, however it is written.

    >>> task_named("AX-b").name
    'axb'
    """
    plain = name.lower().replace("-", "").replace("_", "")
    if plain not in TASKS:
        raise unknown_name("task of SuperGLUE", name, TASKS)
    return TASKS[plain]


def task_folder(folder: Path, task: GlueTask) -> Path:
    """Where a task is, whatever the case of its folder's name."""
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if path.is_dir() and path.name.lower().replace("-", "").replace("_", "") == task.name:
                return path
    return folder / task.folder


def find_split(folder: Path, task: GlueTask, split: str) -> Path | None:
    """The file of a split; None where there is none. The diagnostics' official files are named after them."""
    place = task_folder(folder, task)
    names = [f"{split}.jsonl", *([f"{task.folder}.jsonl"] if split == "test" else [])]
    return next((place / name for name in names if (place / name).is_file()), None)


def numbered_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """The lines of a file of JSON objects with their numbers; a broken one is named."""
    with open_file(path) as file:
        for number, line in enumerate(lines_of(file, path), 1):
            if not line.strip():
                continue
            try:
                row = parse_json(line.decode("utf-8"), "it")
            except ValueError:
                row = None
            if not isinstance(row, dict):
                got = f"something else in line {number} of {path}"
                raise expected("a JSON object in each line", got, "`unsmooth data get superglue`")
            yield number, row


def _pair(first: str, second: str) -> Callable[[Row, GlueTask], Iterator[Example]]:
    def examples(row: Row, task: GlueTask) -> Iterator[Example]:
        yield Example(((str(row[first]), str(row[second])),), task.label(row))

    return examples


def _axg(row: Row, task: GlueTask) -> Iterator[Example]:
    # Two lines that follow each other differ in the gender of a pronoun; "pair_id" is a line's own, despite its name.
    yield Example(((str(row["premise"]), str(row["hypothesis"])),), task.label(row), str(int(row["idx"]) // 2))


def _copa(row: Row, task: GlueTask) -> Iterator[Example]:
    asked = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}[row["question"]]
    texts = tuple((str(row["premise"]), asked, str(row[choice])) for choice in ("choice1", "choice2"))
    yield Example(texts, task.label(row))


def _wic(row: Row, task: GlueTask) -> Iterator[Example]:
    yield Example(((str(row["word"]), str(row["sentence1"]), str(row["sentence2"])),), task.label(row))


def _wsc(row: Row, task: GlueTask) -> Iterator[Example]:
    target = row["target"]
    words = str(row["text"]).split(" ")
    place = int(target["span2_index"])
    # The pronoun between stars, as there may be several; where the index misses it, the text stays as it is.
    if place < len(words) and str(target["span2_text"]).split(" ")[0].lower() in words[place].lower():
        words[place] = f"*{words[place]}*"
    yield Example(((" ".join(words), str(target["span1_text"])),), task.label(row))


def _multirc(row: Row, task: GlueTask) -> Iterator[Example]:
    passage = str(row["passage"]["text"])
    for question in row["passage"]["questions"]:
        for answer in question["answers"]:
            text = (passage, str(question["question"]), str(answer["text"]))
            yield Example((text,), task.label(answer), f"{row['idx']}-{question['idx']}")


def _record(row: Row, task: GlueTask) -> Iterator[Example]:
    passage = str(row["passage"]["text"])
    # The last character of an entity is part of it.
    entities = [passage[each["start"] : each["end"] + 1] for each in row["passage"]["entities"]]
    told = passage.replace("\n@highlight\n", " ")
    for question in row["qas"]:
        known = "answers" in question
        gold = tuple(dict.fromkeys(str(each["text"]) for each in question.get("answers", ())))
        for entity in dict.fromkeys(entities):
            text = (told, str(question["query"]).replace("@placeholder", entity))
            label = int(entity in gold) if known else None
            yield Example((text,), label, f"{row['idx']}-{question['idx']}", entity, gold)


def _lines(train: int, val: int, test: int) -> dict[str, int]:
    return {"train": train, "val": val, "test": test}


_ENTAILS = ("entailment", "not_entailment")
_CB = ("entailment", "contradiction", "neutral")
_YES_NO = (False, True)
_ACCURACY = ("accuracy",)
_PREMISE = _pair("premise", "hypothesis")

TASKS: Mapping[str, GlueTask] = {
    task.name: task
    for task in (
        GlueTask("boolq", "BoolQ", _YES_NO, _ACCURACY, _pair("question", "passage"), _lines(9427, 3270, 3245)),
        GlueTask("cb", "CB", _CB, ("accuracy", "f1_macro"), _PREMISE, _lines(250, 56, 250)),
        GlueTask("copa", "COPA", (0, 1), _ACCURACY, _copa, _lines(400, 100, 500), choice=True),
        GlueTask("multirc", "MultiRC", (0, 1), ("f1_answers", "exact_match"), _multirc, _lines(456, 83, 166)),
        # Its files have a line per passage, and the hub's a line per question.
        GlueTask("record", "ReCoRD", (0, 1), ("f1", "exact_match"), _record, {}),
        GlueTask("rte", "RTE", _ENTAILS, _ACCURACY, _PREMISE, _lines(2490, 277, 3000)),
        GlueTask("wic", "WiC", _YES_NO, _ACCURACY, _wic, _lines(5428, 638, 1400)),
        GlueTask("wsc", "WSC", _YES_NO, _ACCURACY, _wsc, _lines(554, 104, 146)),
        GlueTask("axb", "AX-b", _ENTAILS, ("matthews",), _pair("sentence1", "sentence2"), {"test": 1104}),
        GlueTask("axg", "AX-g", _ENTAILS, ("accuracy", "gender_parity"), _axg, {"test": 356}),
    )
}
