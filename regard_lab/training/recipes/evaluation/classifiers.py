"""How well a classifier sorts texts whose labels are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from regard.arguments import count_of
from regard.errors import ArgumentError, DataError
from regard.reprs import brief
from regard_lab.text import Pair
from regard_lab.text.documents import read_labelled
from regard_lab.text.remarks import Tell, silent
from regard_lab.training.recipes.classification import Classifier
from regard_lab.training.recipes.evaluation.counting import (
    Counting,
    telling_what_was_done,
    uncounted,
)
from regard_lab.training.recipes.evaluation.lines import (
    OWN_TEST,
    exact_matches,
    named_lines,
    rate,
    training_lines,
)
from regard_lab.training.recipes.run_folder import count_trained, read_test

BINS = 10  # of probabilities, for a classifier's calibration
NAMED_CONFUSIONS = 5
NAMED_CLASSES = 12  # of those that a classifier knows, for an error
TEXTS_AT_ONCE = 32


@dataclass(frozen=True)
class ClassFigures:
    """A class: its texts, recall (of the texts of the class) and precision (of those that were given it)."""

    label: str
    count: int
    recall: float | None  # None without such texts
    precision: float | None

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "class": self.label,
            "count": self.count,
            "recall": self.recall,
            "precision": self.precision,
        }

    def line(self) -> str:
        recall = "-" if self.recall is None else rate(self.recall)
        precision = "-" if self.precision is None else rate(self.precision)
        return f"recall {recall}, precision {precision}, {count_of(self.count, 'texts', ',')}"


@dataclass(frozen=True)
class ProbabilityBin:
    """A range of probabilities: its texts, their mean probability, and the share of them that are right."""

    count: int
    probability: float
    right: float


@brief
@dataclass(frozen=True)
class ClassScores:
    """How well a classifier sorts texts: `guesses` holds the probabilities of the classes for each of `pairs`."""

    name: str
    classes: tuple[str, ...]
    pairs: Sequence[Pair]
    guesses: Sequence[Sequence[float]]
    trained: int | None = None

    @cached_property
    def best(self) -> list[int]:
        """The class that is most probable for each text."""
        classes = range(len(self.classes))
        return [max(classes, key=probabilities.__getitem__) for probabilities in self.guesses]

    @cached_property
    def confusion(self) -> list[list[int]]:
        """How many texts of each class (row) were given each class (column)."""
        labels = [pair.target for pair in self.pairs]
        counts = Counter(zip(labels, self.best, strict=True))
        rows = []
        for label in self.classes:
            rows.append([counts[label, best] for best in range(len(self.classes))])
        return rows

    @property
    def accuracy(self) -> float:
        """The share of the texts that are right."""
        right = sum(row[number] for number, row in enumerate(self.confusion))
        return right / len(self.pairs)

    @property
    def baseline(self) -> float:
        """The accuracy of the commonest class alone."""
        return max(map(sum, self.confusion)) / len(self.pairs)

    def by_class(self) -> list[ClassFigures]:
        """The figures of each class."""
        columns = zip(*self.confusion, strict=True)
        figures = []
        for number, column in enumerate(columns):
            row = self.confusion[number]
            right = row[number]
            texts = sum(row)
            given = sum(column)
            recall = right / texts if texts else None
            precision = right / given if given else None
            figures.append(ClassFigures(self.classes[number], texts, recall, precision))
        return figures

    @cached_property
    def calibration(self) -> list[ProbabilityBin]:
        """The tenths of probabilities into which the most probable class of some text falls."""
        probabilities: list[list[float]] = [[] for _ in range(BINS)]
        right: list[list[bool]] = [[] for _ in range(BINS)]
        for pair, guess, best in zip(self.pairs, self.guesses, self.best, strict=True):
            number = min(BINS - 1, int(BINS * guess[best]))
            probabilities[number].append(guess[best])
            right[number].append(self.classes[best] == pair.target)
        bins = []
        for of_bin, right_in_bin in zip(probabilities, right, strict=True):
            if of_bin:
                bins.append(ProbabilityBin(len(of_bin), fmean(of_bin), fmean(right_in_bin)))
        return bins

    @property
    def calibration_error(self) -> float:
        """The expected calibration error.

            Σ over bins of (texts of the bin / texts) · |share right - mean probability|

        Source: Guo et al. 2017, On Calibration of Modern Neural Networks, section 2.
        """
        gaps = [tenth.count * abs(tenth.right - tenth.probability) for tenth in self.calibration]
        return sum(gaps) / len(self.pairs)

    def rows(self) -> list[dict[str, Any]]:
        """Each text with its label, the label that it was given and its probability, as JSON values."""
        rows = []
        for pair, guess, best in zip(self.pairs, self.guesses, self.best, strict=True):
            rows.append(
                {
                    "text": pair.source,
                    "label": pair.target,
                    "given": self.classes[best],
                    "probability": guess[best],
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Everything but the texts as JSON values."""
        return {
            "test": self.name,
            "trained_on": self.trained,
            "count": len(self.pairs),
            "accuracy": self.accuracy,
            "majority_baseline": self.baseline,
            "classes": [figures.to_dict() for figures in self.by_class()],
            "confusion": self.confusion,
            "calibration_error": self.calibration_error,
            "calibration": [asdict(tenth) for tenth in self.calibration],
        }

    def lines(self) -> list[str]:
        """Everything in lines of text."""
        count = len(self.pairs)
        probability = rate(fmean(map(max, self.guesses)))
        values = {
            "accuracy": exact_matches(self.accuracy, count),
            "baseline": f"{rate(self.baseline)}, by the commonest class alone",
            "calibration": f"its mean probability is {probability}; "
            f"expected calibration error {self.calibration_error:.3f}",
        }
        of_classes = {figures.label: figures.line() for figures in self.by_class()}
        return [
            f"{count_of(count, 'texts', ',')} of {self.name}",
            *training_lines(self.trained, count, "texts", "new texts"),
            *named_lines(values),
            *named_lines(of_classes),
            *self._confusion_lines(),
        ]

    def _confusion_lines(self) -> list[str]:
        """A line for each of the commonest confusions."""
        confusions = []
        for label, row in zip(self.classes, self.confusion, strict=True):
            for best, number in zip(self.classes, row, strict=True):
                if number and best != label:
                    confusions.append((number, label, best))
        commonest = sorted(confusions, reverse=True)[:NAMED_CONFUSIONS]
        return [
            f"  {number:,} of {label!r} were taken for {best!r}"
            for number, label, best in commonest
        ]


def evaluate_classifier(
    run: str | Path,
    test: Sequence[str | Path] = (),
    *,
    tell: Tell = silent,
    counting: Counting = uncounted,
) -> ClassScores:
    """Sort texts whose labels are known, by default those of the run's own test split."""
    classifier = Classifier.load(run)
    classes = tuple(classifier.classes)
    name, pairs = _read_labelled_texts(Path(run), test, tell)
    unknown = sorted({pair.target for pair in pairs} - set(classes))
    if unknown:
        known = ", ".join(classes[:NAMED_CLASSES])
        raise DataError(
            f"{name} has the label {unknown[0]!r}, which {run} does not know; it knows {known}"
        )

    guesses: list[list[float]] = []

    def rows_so_far() -> list[dict[str, Any]]:
        return ClassScores(name, classes, pairs[: len(guesses)], guesses).rows()

    interruptible = telling_what_was_done("texts", len(pairs), guesses, rows_so_far)
    with interruptible, counting(len(pairs)) as progress:
        for start in range(0, len(pairs), TEXTS_AT_ONCE):
            some = pairs[start : start + TEXTS_AT_ONCE]
            guesses += classifier.probabilities([pair.source for pair in some])
            progress(len(some))
    return ClassScores(name, classes, pairs, guesses, count_trained(Path(run), pairs))


def _read_labelled_texts(
    run: Path, test: Sequence[str | Path], tell: Tell
) -> tuple[str, Sequence[Pair]]:
    """The name of the test, and its texts with labels."""
    if not test:
        return OWN_TEST, read_test(run)
    if len(test) > 1:
        raise ArgumentError(f"{len(test)} files were given; texts with labels are read from one")
    read = read_labelled(test[0], least=1)
    tell(read.report)
    return str(test[0]), read.pairs
