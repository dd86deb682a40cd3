"""The definition of an experiment: contenders trained in the same way, measures, and claims that are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.behaviour.verdicts import Verdict

Record = dict[str, Any]  # measures of one training by name, always with "cpu_seconds" and "curve"
Records = Mapping[str, Mapping[int, Record]]  # contender -> seed -> record

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Experiment:
    """An experiment on one published result.

    name, title: on the command line and in the report.
    recipe: paragraphs on data, training, measures and source.
    contenders: the names of the compared models.
    columns: measures in the table, with their headings.
    run: trains one contender with one seed; `quick` uses a fiftieth of the updates.
    judge: checks the claims on complete records.
    draw: draws complete records onto matplotlib axes.
    """

    name: str
    title: str
    recipe: str
    contenders: Sequence[str]
    columns: Mapping[str, str]
    run: Callable[[str, int, bool], Record]
    judge: Callable[[Records], list[Verdict]]
    draw: Callable[[Records, Any], None]
    seeds: Sequence[int] = SEEDS


def over_seeds(records: Records, contender: str, measure: str) -> list[float]:
    """One measure of one contender, in the order of its seeds."""
    return [record[measure] for _, record in sorted(records[contender].items())]


def mean(numbers: Sequence[float]) -> float:
    """The mean of some numbers."""
    return sum(numbers) / len(numbers)
