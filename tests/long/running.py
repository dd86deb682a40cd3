"""What a long run is and what it found, the one file of results, and how cases are run one batch after the other."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from regard.storage.files import replace_file

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "reliability.json"
MOST_WRONG = 80  # sentences that are kept
MOST_NOTED = 400
FIELDS = ("counts", "largest", "wrong", "noted")  # of `Found`


@dataclass
class Found:
    """What cases found, added up: numbers by name, the largest values, and sentences."""

    counts: Counter[str] = field(default_factory=Counter)
    largest: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)  # to be looked at; not a failure

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] += number

    def at_most(self, name: str, value: float) -> None:
        self.largest[name] = max(self.largest.get(name, value), value)

    def add(self, other: Found) -> None:
        self.counts += other.counts
        for name, value in other.largest.items():
            self.at_most(name, value)
        self.wrong = [*self.wrong, *other.wrong][:MOST_WRONG]
        self.noted = [*self.noted, *other.noted][:MOST_NOTED]


@dataclass(frozen=True)
class LongRun:
    """One subject of the long tier: numbered cases, each of which is the same whenever it is run.

    Args:
        name: what the command calls it.
        claim: what a case shows, in a sentence.
        unit: what a case is.
        cases: how many there are to be.
        batch: cases between two times that the figure is written.
        place: `module.function` in this package; it takes the cases' numbers and a folder of its own.
        options: further arguments of that function.
        needs: `module.function`, which returns a sentence where this machine cannot run it, else None.
    """

    name: str
    claim: str
    unit: str
    cases: int
    batch: int
    place: str
    options: tuple[str, ...] = ()
    needs: str = ""

    def work(self, numbers: Sequence[int], folder: Path) -> Found:
        call: Callable[..., Found] = _function_at(self.place)
        return call(numbers, folder, *self.options)

    @property
    def missing(self) -> str | None:
        """Why it cannot run on this machine, in a sentence; None if it can."""
        return _function_at(self.needs)() if self.needs else None

    @property
    def command(self) -> str:
        return f"python -m tests.long {self.name}"


def _function_at(place: str) -> Callable[..., Any]:
    """`module.function` of this package; importing the module takes seconds, so it is done when it runs."""
    module, _, function = place.rpartition(".")
    return getattr(import_module(f"tests.long.{module}"), function)


def each_case(case: Callable[[int, Found], None]) -> Callable[[Sequence[int], Path], Found]:
    """The work of a run whose cases need no folder, from what one case does."""

    def work(numbers: Sequence[int], folder: Path) -> Found:
        found = Found()
        for number in numbers:
            case(number, found)
        return found

    return work


def read(path: Path = RESULTS) -> dict[str, Any]:
    """The content of the file; empty where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"runs": {}}


@contextmanager
def changed_results(path: Path = RESULTS) -> Generator[dict[str, Any]]:
    """The content of the file, to be changed inside the block by one process at a time, and then written whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        content = read(path)
        yield content
        text = json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True)
        replace_file(path, f"{text}\n".encode())
    finally:
        os.close(folder)


def with_cases(
    record: dict[str, Any] | None,
    run: LongRun,
    numbers: Iterable[int],
    found: Found,
    seconds: float,
) -> dict[str, Any]:
    """The record of a run with some more cases."""
    today = date.today().isoformat()
    before = {"first": today, "done": [], "cpu_seconds": 0, **(record or {})}
    whole = Found()
    whole.add(Found(**{name: before[name] for name in FIELDS if name in before}))
    whole.add(found)
    done = joined([*before["done"], *([number, number + 1] for number in numbers)])
    return {
        "claim": run.claim,
        "unit": run.unit,
        "asked": run.cases,
        "command": run.command,
        "first": before["first"],
        "last": today,
        "done": done,
        "cases": sum(stop - start for start, stop in done),
        "counts": dict(whole.counts),
        "largest": {name: float(f"{x:.3g}") for name, x in whole.largest.items()},
        "wrong": whole.wrong,
        "noted": whole.noted,
        "cpu_seconds": round(before["cpu_seconds"] + seconds, 1),
        "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
    }


def joined(ranges: Iterable[list[int]]) -> list[list[int]]:
    """Ranges of numbers, those that touch joined.

    >>> joined([[4, 5], [0, 2], [2, 3]])
    [[0, 3], [4, 5]]
    """
    whole: list[list[int]] = []
    for start, stop in sorted(map(list, ranges)):
        if whole and start <= whole[-1][1]:
            whole[-1][1] = max(whole[-1][1], stop)
        else:
            whole.append([start, stop])
    return whole


def left(record: dict[str, Any] | None, cases: int, shard: tuple[int, int] = (1, 1)) -> list[int]:
    """The numbers of a shard that no record holds; shards are neighbouring numbers.

    >>> left({"done": [[0, 3]]}, 10, (1, 2)), left(None, 4, (2, 2))
    ([3, 4], [2, 3])
    """
    part, parts = shard
    numbers = dict.fromkeys(range(cases * (part - 1) // parts, cases * part // parts))
    for start, stop in record["done"] if record else []:
        for number in range(start, stop):
            numbers.pop(number, None)
    return list(numbers)


def cpu_seconds() -> float:
    """Seconds of CPU that this process and its children that ended have used."""
    seconds = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        seconds += usage.ru_utime + usage.ru_stime
    return seconds


def run_batch(run: LongRun, numbers: Sequence[int], path: Path) -> Found:
    """What a batch of cases found, which is in the file when this returns."""
    began = cpu_seconds()
    with tempfile.TemporaryDirectory(prefix=f"long-{run.name}-") as folder:
        found = run.work(numbers, Path(folder))
    with changed_results(path) as content:
        record = content["runs"].get(run.name)
        content["runs"][run.name] = with_cases(record, run, numbers, found, cpu_seconds() - began)
    return found


def go_on(
    run: LongRun, cases: int, minutes: float, shard: tuple[int, int] = (1, 1), path: Path = RESULTS
) -> int:
    """Run what is left of the first `cases` cases of a shard, for so many minutes; 1 if something was wrong.

    A batch that is interrupted counts for nothing, and the next call begins with it. Where this machine lacks what the
    run needs, it is skipped and says so.
    """
    if (reason := run.missing) is not None:
        print(f"{run.name}: skipped, since {reason}", flush=True)
        return 0
    numbers = left(read(path)["runs"].get(run.name), cases, shard)
    end = time.monotonic() + 60 * minutes
    part, parts = shard
    words = f"{len(numbers)} of {cases} {run.unit} are left in shard {part} of {parts}"
    print(f"{run.name}: {words}", flush=True)

    wrong = 0
    for first in range(0, len(numbers), run.batch):
        if time.monotonic() > end:
            break
        batch = numbers[first : first + run.batch]
        found = run_batch(run, batch, path)
        wrong += len(found.wrong)
        for sentence in (*found.wrong, *found.noted):
            print(f"  {sentence}", flush=True)
        words = f"{first + len(batch)} of {len(numbers)} done, {wrong} wrong"
        print(f"{run.name}: {words}", file=sys.stderr, flush=True)
    return int(wrong > 0)


def forget(run: LongRun, path: Path = RESULTS) -> None:
    """Remove what the file holds of a run, so that it begins with its first case."""
    with changed_results(path) as content:
        content["runs"].pop(run.name, None)
