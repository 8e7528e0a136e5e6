"""The official metrics of SuperGLUE (Wang et al. 2019, arXiv 1905.00537, section 3), as shares from 0 to 1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy

from unsmooth.errors import expected
from unsmooth.training.data.superglue import Example, task_named

Predictions = Sequence[float]


def score(task: str, predictions: Sequence[float], examples: Sequence[Example]) -> dict[str, float]:
    """The metrics of a task.

    Args:
        task: A name in `unsmooth.training.data.superglue.TASKS`.
        predictions: For each example the class, or the chosen candidate. For ReCoRD a number that is higher for
            likelier answers: the highest of a question is its answer.
        examples: With labels.

    >>> examples = [Example((("a", "b"),), label) for label in (0, 1, 1, 0)]
    >>> score("rte", [0, 1, 0, 0], examples)
    {'accuracy': 0.75}
    """
    chosen = task_named(task)
    if len(predictions) != len(examples):
        raise expected(f"{len(examples)} predictions for {chosen.folder}", len(predictions), "one for each example")
    if not examples or any(example.label is None for example in examples):
        raise expected(f"labels to score {chosen.folder} against", "none", 'split="val", whose labels are public')
    return {metric: _METRICS[metric](predictions, examples) for metric in chosen.metrics}


def overall(scores: dict[str, float]) -> float:
    """The one number of a task: the mean of its metrics.

    >>> overall({"accuracy": 0.9, "f1_macro": 0.7})
    0.8
    """
    return sum(scores.values()) / len(scores)


def majority(task: str, train: Sequence[Example], val: Sequence[Example]) -> dict[str, float]:
    """What one gets on `val` without reading: the same label for all, the one that scores best on `train`.

    Where the metric is accuracy, that is the commonest label. For MultiRC it is "yes", as F1 counts right answers only.
    ReCoRD has no label that stays the same: there it is the entity that the passage names most often.
    """
    if task_named(task).name == "record":
        return score(task, [float(example.texts[0][0].count(example.answer or "")) for example in val], val)
    labels = sorted({example.label for example in train if example.label is not None})
    if not labels:
        raise expected("labels to learn from", "none", 'split="train"')
    best = max(labels, key=lambda label: overall(score(task, [label] * len(train), train)))
    return score(task, [best] * len(val), val)


def _labels(examples: Sequence[Example]) -> numpy.ndarray:
    return numpy.array([example.label for example in examples])


def _accuracy(predictions: Predictions, examples: Sequence[Example]) -> float:
    return float(numpy.mean(numpy.asarray(predictions) == _labels(examples)))


def _f1(predicted: numpy.ndarray, real: numpy.ndarray) -> float:
    """Harmonic mean of precision and recall of two lists of yes and no; 0 where there is no yes in both."""
    both = numpy.count_nonzero(predicted & real)
    either = numpy.count_nonzero(predicted) + numpy.count_nonzero(real)
    return float(2 * both / either) if either else 0.0


def _f1_macro(predictions: Predictions, examples: Sequence[Example]) -> float:
    predicted, real = numpy.asarray(predictions), _labels(examples)
    classes = numpy.union1d(predicted, real)
    return float(numpy.mean([_f1(predicted == each, real == each) for each in classes]))


def _f1_answers(predictions: Predictions, examples: Sequence[Example]) -> float:
    """F1 of the right answers over all questions together."""
    return _f1(numpy.asarray(predictions) == 1, _labels(examples) == 1)


def _exact_match(predictions: Predictions, examples: Sequence[Example]) -> float:
    """MultiRC: questions of which every answer is judged rightly. ReCoRD: questions whose answer is a right one."""
    if examples[0].answer is not None:
        return _over_questions(predictions, examples, lambda said, gold: float(normal_form(said) == normal_form(gold)))
    right: dict[str | None, bool] = {}
    for prediction, example in zip(predictions, examples, strict=True):
        right[example.group] = right.get(example.group, True) and prediction == example.label
    return sum(right.values()) / len(right)


def _f1_of_words(predictions: Predictions, examples: Sequence[Example]) -> float:
    return _over_questions(predictions, examples, word_f1)


def _over_questions(
    predictions: Predictions, examples: Sequence[Example], compare: Callable[[str, str], float]
) -> float:
    """Mean over questions of the best agreement between the likeliest candidate and a right answer."""
    best: dict[str | None, tuple[float, Example]] = {}
    for prediction, example in zip(predictions, examples, strict=True):
        if example.group not in best or prediction > best[example.group][0]:
            best[example.group] = (prediction, example)
    said = (example for _, example in best.values())
    return sum(max((compare(each.answer or "", gold) for gold in each.gold), default=0.0) for each in said) / len(best)


def _matthews(predictions: Predictions, examples: Sequence[Example]) -> float:
    """Matthews correlation: the correlation of two lists of yes and no; 0 where one of them is constant."""
    predicted, real = numpy.asarray(predictions, dtype=float), _labels(examples).astype(float)
    spread = predicted.std() * real.std()
    covariance = numpy.mean((predicted - predicted.mean()) * (real - real.mean()))
    return float(covariance / spread) if spread else 0.0


def _gender_parity(predictions: Predictions, examples: Sequence[Example]) -> float:
    """The share of pairs, which differ in a pronoun's gender, with the same prediction (Rudinger et al. 2018)."""
    pairs: dict[str | None, set[float]] = {}
    for prediction, example in zip(predictions, examples, strict=True):
        pairs.setdefault(example.group, set()).add(float(prediction))
    return sum(len(said) == 1 for said in pairs.values()) / len(pairs)


def normal_form(text: str) -> str:
    """As answers are compared (Rajpurkar et al. 2016, arXiv 1606.05250): no case, punctuation, articles, extra space.

    >>> normal_form("The  U.S. Open!")
    'us open'
    """
    plain = "".join(sign for sign in text.lower() if sign not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def word_f1(said: str, gold: str) -> float:
    """F1 of the words of two answers, counted with repetition.

    >>> word_f1("the President Obama", "Barack Obama")
    0.5
    """
    one, other = normal_form(said).split(), normal_form(gold).split()
    both = sum((Counter(one) & Counter(other)).values())
    return 2 * both / (len(one) + len(other)) if both else 0.0


_METRICS: dict[str, Callable[[Predictions, Sequence[Example]], float]] = {
    "accuracy": _accuracy,
    "f1_macro": _f1_macro,
    "f1_answers": _f1_answers,
    "exact_match": _exact_match,
    "f1": _f1_of_words,
    "matthews": _matthews,
    "gender_parity": _gender_parity,
}
