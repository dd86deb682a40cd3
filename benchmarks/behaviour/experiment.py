"""What an experiment is: contenders that are trained alike, what is measured, and the claims that the numbers face."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.behaviour.verdicts import Verdict

Record = dict[str, Any]  # what one training measured, by name; "cpu_seconds" and "curve" always
Records = Mapping[str, Mapping[int, Record]]  # contender -> seed -> record

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Experiment:
    """One published behaviour.

    name, title: what it is called on the command line and in the report.
    recipe: paragraphs that say what is drawn, trained and measured, and where it comes from.
    contenders: what differs.
    columns: measures shown in the table, with their headings.
    run: trains one contender with one seed; `quick` asks for a fiftieth of the updates.
    judge: the claims, from complete records.
    draw: the figure, from complete records onto matplotlib axes.
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
    """Their mean."""
    return sum(numbers) / len(numbers)
