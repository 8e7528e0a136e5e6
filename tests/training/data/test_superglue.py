"""Every task's lines as examples, and the metrics against scikit-learn and numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from unsmooth.errors import UnsmoothError
from unsmooth.training.data.superglue import TASKS, Example, read_task
from unsmooth.training.data.superglue_scores import majority, overall, score, word_f1

PASSAGE = "Ann Lee met Bob.\n@highlight\nAnn Lee won"
LINES: dict[str, dict[str, Any]] = {
    "boolq": {"question": "is it", "passage": "It is.", "idx": 0, "label": True},
    "cb": {"premise": "p", "hypothesis": "h", "label": "neutral", "idx": 0},
    "copa": {"premise": "It rained.", "choice1": "a", "choice2": "b", "question": "effect", "label": 1, "idx": 0},
    "multirc": {
        "idx": 4,
        "passage": {
            "text": "P",
            "questions": [
                {"question": "Q1", "idx": 0, "answers": [{"text": "A", "label": 1}, {"text": "B", "label": 0}]},
                {"question": "Q2", "idx": 1, "answers": [{"text": "C", "label": 0}]},
            ],
        },
    },
    "record": {
        "idx": 7,
        "passage": {
            "text": PASSAGE,
            "entities": [{"start": 0, "end": 6}, {"start": 12, "end": 14}, {"start": 28, "end": 34}],
        },
        "qas": [{"idx": 2, "query": "@placeholder lost", "answers": [{"text": "Bob", "start": 12, "end": 14}]}],
    },
    "rte": {"premise": "p", "hypothesis": "h", "label": "not_entailment", "idx": 0},
    "wic": {"word": "bank", "sentence1": "s1", "sentence2": "s2", "label": False, "idx": 0},
    "wsc": {
        "text": "Mark told Pete that he won",
        "target": {"span1_index": 0, "span1_text": "Mark", "span2_index": 4, "span2_text": "he"},
        "label": True,
        "idx": 0,
    },
    "axb": {"sentence1": "p", "sentence2": "h", "label": "entailment", "idx": "0", "logic": "x"},
    "axg": {"premise": "p", "hypothesis": "h", "label": "entailment", "idx": 5, "pair_id": 551646},
}
HIGHLIGHT = "Ann Lee met Bob. Ann Lee won"
EXAMPLES: dict[str, list[tuple[Any, ...]]] = {
    "boolq": [((("is it", "It is."),), 1)],
    "cb": [((("p", "h"),), 2)],
    "copa": [
        (
            (
                ("It rained.", "What happened as a result?", "a"),
                ("It rained.", "What happened as a result?", "b"),
            ),
            1,
        )
    ],
    "multirc": [
        ((("P", "Q1", "A"),), 1, "4-0"),
        ((("P", "Q1", "B"),), 0, "4-0"),
        ((("P", "Q2", "C"),), 0, "4-1"),
    ],
    "record": [
        (((HIGHLIGHT, "Ann Lee lost"),), 0, "7-2", "Ann Lee", ("Bob",)),
        (((HIGHLIGHT, "Bob lost"),), 1, "7-2", "Bob", ("Bob",)),
    ],
    "rte": [((("p", "h"),), 1)],
    "wic": [((("bank", "s1", "s2"),), 0)],
    "wsc": [((("Mark told Pete that *he* won", "Mark"),), 1)],
    "axb": [((("p", "h"),), 0)],
    "axg": [((("p", "h"),), 0, "2")],
}


def write(folder: Path, task: str, *lines: str, split: str = "test") -> Path:
    path = folder / TASKS[task].folder / f"{split}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("task", TASKS)
def test_a_line_of_each_task(task: str, tmp_path: Path) -> None:
    write(tmp_path, task, json.dumps(LINES[task]))
    assert read_task(tmp_path, task, "test") == [Example(*each) for each in EXAMPLES[task]]


def without_labels(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_labels(item) for key, item in value.items() if not is_label(key, item)}
    return [without_labels(item) for item in value] if isinstance(value, list) else value


def is_label(key: str, item: Any) -> bool:
    """MultiRC's answers stay, without labels; ReCoRD's, which say where they are, are the labels."""
    return key == "label" or (key == "answers" and "start" in item[0])


@pytest.mark.parametrize("task", TASKS)
def test_lines_without_labels(task: str, tmp_path: Path) -> None:
    write(tmp_path, task, json.dumps(without_labels(LINES[task])))
    examples = read_task(tmp_path, task, "test")
    assert [example.texts for example in examples] == [each[0] for each in EXAMPLES[task]]
    assert {example.label for example in examples} == {None}
    with pytest.raises(UnsmoothError, match="labels to score"):
        score(task, [0] * len(examples), examples)


def test_other_spellings_of_names(tmp_path: Path) -> None:
    (tmp_path / "boolq").mkdir()
    (tmp_path / "boolq" / "val.jsonl").write_text(json.dumps(LINES["boolq"]))
    assert len(read_task(tmp_path, "BoolQ", "val")) == 1
    (tmp_path / "AX-g").mkdir()
    (tmp_path / "AX-g" / "AX-g.jsonl").write_text(json.dumps(LINES["axg"]))
    assert len(read_task(tmp_path, "AX-g", "test")) == 1
    with pytest.raises(UnsmoothError, match="Did you mean 'boolq'"):
        read_task(tmp_path, "boolqs")


def test_what_is_wrong_with_the_files(tmp_path: Path) -> None:
    write(tmp_path, "boolq", json.dumps(LINES["boolq"]), split="val")
    write(tmp_path, "boolq", json.dumps(LINES["boolq"]), split="train32")
    with pytest.raises(UnsmoothError, match=r"train\.jsonl of BoolQ in .* but got only train32, val\. Try train32, or"):
        read_task(tmp_path, "boolq", "train")
    with pytest.raises(UnsmoothError, match="RTE but got no such folder"):
        read_task(tmp_path, "rte", "train")
    good = json.dumps(LINES["rte"])
    for line, said in (
        ("{", "something else"),
        ("[1]", "something else"),
        ('{"premise": "p"}', r"KeyError \('hypothesis'\)"),
        (good.replace("not_entailment", "perhaps"), r'label "perhaps"'),
    ):
        write(tmp_path, "rte", good, good, line)
        with pytest.raises(UnsmoothError, match=rf"{said}.* in line 3 of .*test\.jsonl"):
            read_task(tmp_path, "rte", "test")
    write(tmp_path, "rte", "")
    with pytest.raises(UnsmoothError, match=r"examples of RTE in .* but got none"):
        read_task(tmp_path, "rte", "test")


def labelled(labels: list[int], groups: list[str] | None = None) -> list[Example]:
    return [Example((("a",),), label, (groups or [None] * len(labels))[place]) for place, label in enumerate(labels)]


def test_metrics_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = numpy.random.default_rng(0)
    for seed in range(5):
        real = generator.integers(0, 3, 60).tolist()
        said = [each if generator.random() < 0.5 else int(generator.integers(0, 2 + seed % 2)) for each in real]
        found = score("cb", said, labelled(real))
        assert found["accuracy"] == pytest.approx(metrics.accuracy_score(real, said))
        assert found["f1_macro"] == pytest.approx(metrics.f1_score(real, said, average="macro"))
        real, said = [each % 2 for each in real], [each % 2 for each in said]
        assert score("axb", said, labelled(real))["matthews"] == pytest.approx(metrics.matthews_corrcoef(real, said))
        groups = [str(place // 3) for place in range(60)]
        found = score("multirc", said, labelled(real, groups))
        assert found["f1_answers"] == pytest.approx(metrics.f1_score(real, said))
        by_question = numpy.equal(real, said).reshape(20, 3).all(1)
        assert found["exact_match"] == pytest.approx(by_question.mean())


def test_metrics_by_hand() -> None:
    # Matthews: 2 right yes, 1 right no, 1 wrong yes: (2·1 − 1·0) / √(3·2·2·1).
    assert score("axb", [1, 1, 0, 1], labelled([1, 1, 0, 0]))["matthews"] == pytest.approx(2 / 12**0.5)
    assert score("axb", [1, 1, 1, 1], labelled([1, 1, 0, 0]))["matthews"] == 0
    # Classes 0 and 1 have F1 2/3 and 4/5; class 2 is nowhere, so it does not count.
    assert score("cb", [0, 1, 1, 1], labelled([0, 0, 1, 1]))["f1_macro"] == pytest.approx((2 / 3 + 4 / 5) / 2)
    pairs = labelled([0, 0, 1, 1], ["a", "a", "b", "b"])
    assert score("axg", [0, 0, 1, 0], pairs) == {"accuracy": 0.75, "gender_parity": 0.5}
    assert score("axg", [1, 1, 0, 0], pairs) == {"accuracy": 0.0, "gender_parity": 1.0}
    assert overall({"a": 0.75, "b": 0.5}) == 0.625
    with pytest.raises(UnsmoothError, match="4 predictions for AX-g but got 1"):
        score("axg", [1], pairs)


def test_record_is_scored_by_the_likeliest_answer_of_a_question() -> None:
    gold = ("Barack Obama", "the U.S. President")
    candidates = ["President Obama", "us president!", "Michelle Obama"]
    examples = [Example((("p", "q"),), 0, "one", answer, gold) for answer in candidates]
    examples += [Example((("p", "q"),), 0, "two", "nobody", ("somebody",))]
    # "us president" is a right answer but for case, articles and punctuation.
    assert score("record", [0.1, 0.7, 0.2, 0.0], examples) == {"f1": 0.5, "exact_match": 0.5}
    # "President Obama" shares one of two words with each of the right answers.
    assert score("record", [0.9, 0.7, 0.2, 0.0], examples) == {"f1": 0.25, "exact_match": 0.0}
    assert word_f1("a b b", "b b c") == pytest.approx(2 * 2 / (2 + 3))  # "a" is an article


def test_majority_reads_nothing() -> None:
    train, val = labelled([1, 1, 0]), labelled([1, 0, 0, 0])
    assert majority("rte", train, val) == {"accuracy": 0.25}
    grouped = labelled([0, 0, 0, 1, 0], ["a", "a", "b", "b", "b"])
    found = majority("multirc", labelled([0, 0, 1], ["a"] * 3), grouped)
    # Always yes finds the one right answer of five: F1 2·1 / (5 + 1).
    assert found == {"f1_answers": pytest.approx(1 / 3), "exact_match": 0.0}
    record = [
        Example((("Ann and Ann and Bob", "q"),), label, "one", answer, ("Ann",))
        for answer, label in (("Bob", 0), ("Ann", 1))
    ]
    assert majority("record", record, record) == {"f1": 1.0, "exact_match": 1.0}
    with pytest.raises(UnsmoothError, match="labels to learn from"):
        majority("rte", [Example((("a",),), None)], val)
