"""An experiment on a published result: its contenders, records, verdicts and report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from regard.storage.files import replace_file
from regard_lab.bench.results import environment
from regard_lab.text.writing import markdown_table


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim with the measured figures, and whether it was kept."""

    text: str
    kept: bool

    def __str__(self) -> str:
        return f"{self.text}: {'kept' if self.kept else 'missed'}"


def at_least(what: str, values: Sequence[float], limit: float) -> ClaimVerdict:
    """Every seed must reach the limit.

    >>> print(at_least("accuracy of softmax", [0.98, 1.0], 0.9))
    accuracy of softmax is 0.980 to 1.000, at least 0.9 promised: kept
    """
    text = f"{what} is {spread(values)}, at least {limit:g} promised"
    return ClaimVerdict(text, min(values) >= limit)


def below(what: str, values: Sequence[float], limit: float) -> ClaimVerdict:
    """Every seed must stay below the limit.

    >>> print(below("accuracy of a window", [0.1, 0.4], 0.3))
    accuracy of a window is 0.100 to 0.400, below 0.3 promised: missed
    """
    text = f"{what} is {spread(values)}, below {limit:g} promised"
    return ClaimVerdict(text, max(values) < limit)


def apart(
    what: str, more: Sequence[float], less: Sequence[float], margin: float = 0.0
) -> ClaimVerdict:
    """For every seed, the first number must exceed the second by more than the margin.

    >>> print(apart("loss of fixed above strided", [2.0, 2.1], [1.0, 1.3], margin=0.5))
    loss of fixed above strided by 0.800 to 1.000, more than 0.5 promised: kept
    """
    gaps = [larger - smaller for larger, smaller in zip(more, less, strict=True)]
    text = f"{what} by {spread(gaps)}, more than {margin:g} promised"
    return ClaimVerdict(text, min(gaps) > margin)


def spread(values: Sequence[float]) -> str:
    """The smallest and the largest, as text."""
    least = f"{min(values):.3f}"
    most = f"{max(values):.3f}"
    return least if least == most else f"{least} to {most}"


Record = dict[str, Any]  # measures of one training by name, always with "cpu_seconds"
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
    """

    name: str
    title: str
    recipe: str
    contenders: Sequence[str]
    columns: Mapping[str, str]
    run: Callable[[str, int, bool], Record]
    judge: Callable[[Records], list[ClaimVerdict]]
    seeds: Sequence[int] = SEEDS


def over_seeds(records: Records, contender: str, measure: str) -> list[float]:
    """One measure of one contender, in the order of its seeds."""
    return [record[measure] for _, record in sorted(records[contender].items())]


RECORDS = "behaviour.json"
REPORT = "behaviour.md"


@dataclass
class BehaviourResults:
    """Records by experiment, contender and seed, the environment, and the day of the last training."""

    quick: bool = False
    environment: dict[str, Any] = field(default_factory=environment)
    # By experiment, contender and seed; a seed is a string, as JSON needs it.
    records: dict[str, dict[str, dict[str, Record]]] = field(default_factory=dict)
    measured: str = ""

    def missing(self, experiment: Experiment) -> list[tuple[str, int]]:
        """The contenders and seeds that are not trained yet, ordered by seed."""
        trained = self.records.get(experiment.name, {})
        missing = []
        for seed in experiment.seeds:
            for contender in experiment.contenders:
                if str(seed) not in trained.get(contender, {}):
                    missing.append((contender, seed))
        return missing

    def add(self, experiment: Experiment, contender: str, seed: int, record: Record) -> None:
        """Store the record of one training, which was finished today."""
        self.measured = date.today().isoformat()
        record = {**record, "measured": self.measured, "processor": environment()["processor"]}
        self.records.setdefault(experiment.name, {}).setdefault(contender, {})[str(seed)] = record

    def of(self, experiment: Experiment) -> dict[str, dict[int, Record]]:
        """The records of an experiment, in the order of its contenders and seeds."""
        records: dict[str, dict[int, Record]] = {}
        stored = self.records.get(experiment.name, {})
        for contender in experiment.contenders:
            if contender not in stored:
                continue
            records[contender] = {}
            for seed in experiment.seeds:
                if str(seed) in stored[contender]:
                    records[contender][seed] = stored[contender][str(seed)]
        return records

    def save(self, folder: Path) -> None:
        """Write the file atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / RECORDS, (json.dumps(vars(self), indent=1) + "\n").encode())

    @classmethod
    def load(cls, folder: Path, quick: bool) -> BehaviourResults:
        """Load the results of a folder, or start new ones; quick and complete runs are not mixed."""
        path = folder / RECORDS
        if not path.exists():
            return cls(quick)
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["quick"] != quick:
            run = "a quick" if content["quick"] else "a whole"
            raise SystemExit(f"{path} holds {run} run; choose another --out")
        return cls(**content)


def write_report(
    results: BehaviourResults, experiments: Sequence[Experiment], folder: Path
) -> None:
    """Write `behaviour.md`; an experiment whose trainings are complete has verdicts."""
    machine = results.environment
    measured = f"Measured on {results.measured}: " if results.measured else ""
    complete = [experiment for experiment in experiments if not results.missing(experiment)]
    command = "`python -m benchmarks.behaviour`"
    if results.quick:
        command += " --quick: a fiftieth of the updates, so no verdict means anything."
    lines = [
        "# Published behaviour at small scale",
        "",
        command,
        "",
        f"{measured}regard {machine['regard']}, torch {machine['torch']}, Python {machine['python']}; "
        f"{machine['system']}, {machine['processor']}; one thread.",
        "",
        "Each number is the mean over the seeds, with the smallest and the largest in brackets; a claim is kept if "
        "every seed keeps it. CPU seconds are those of one training.",
        "",
        *_summary(results, complete),
    ]
    for experiment in experiments:
        lines += ["", f"## {experiment.title} ({experiment.name})", "", experiment.recipe, ""]
        lines += [*_table(experiment, results.of(experiment)), *_elsewhere(results, experiment)]
        if experiment in complete:
            lines += ["", *(f"- {verdict}" for verdict in experiment.judge(results.of(experiment)))]
        else:
            missing = len(results.missing(experiment))
            lines += ["", f"{missing} trainings are missing, so there is no verdict yet."]
    replace_file(folder / REPORT, ("\n".join(lines).rstrip() + "\n").encode())


def _elsewhere(results: BehaviourResults, experiment: Experiment) -> list[str]:
    """A line on the day and processor of an experiment that was measured on another one than the report names."""
    processor = results.environment["processor"]
    elsewhere = set()
    is_partly_here = False
    for by_seed in results.of(experiment).values():
        for record in by_seed.values():
            if record.get("processor", processor) == processor:
                is_partly_here = True
            else:
                elsewhere.add((record["measured"], record["processor"]))
    if not elsewhere:
        return []
    measured = "In part measured" if is_partly_here else "Measured"
    return ["", *(f"{measured} on {day} on {name}." for day, name in sorted(elsewhere))]


def _summary(results: BehaviourResults, complete: Sequence[Experiment]) -> list[str]:
    kept = 0
    missed = []
    for experiment in complete:
        for verdict in experiment.judge(results.of(experiment)):
            if verdict.kept:
                kept += 1
            else:
                missed.append(f"- missed in {experiment.name}: {verdict.text}")
    counts = f"{kept} claims kept, {len(missed)} missed."
    return [counts, "", *missed] if missed else [counts]


def _table(experiment: Experiment, records: Records) -> list[str]:
    rows = []
    for contender, by_seed in records.items():
        seeds = list(by_seed.values())
        cells = []
        for name in experiment.columns:
            cells.append(_cell([record[name] for record in seeds]))
        seconds = sum(record["cpu_seconds"] for record in seeds) / len(seeds)
        rows.append([contender, *cells, str(len(seeds)), f"{seconds:.0f}"])
    return markdown_table(("", *experiment.columns.values(), "seeds", "CPU s"), rows)


def _cell(values: list[float | str]) -> str:
    """A mean with its extremes, or the value if it is the same for every seed.

    >>> _cell([0.5, 1.0]), _cell(["all", "all"])
    ('0.750 (0.500 to 1.000)', 'all')
    """
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) < len(values):
        return str(values[0])
    mean = f"{sum(numbers) / len(numbers):.3f}"
    return mean if len(set(numbers)) == 1 else f"{mean} ({spread(numbers)})"
