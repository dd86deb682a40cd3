"""Measures time and memory of one row at growing lengths, until enough lengths take long enough to be reliable."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from regard.errors import RegardError, UnsupportedError
from regard.reprs import brief
from regard_lab.bench.complexity.rows import Row
from regard_lab.bench.measuring import Pace, peak_of, take_turns, threads
from regard_lab.bench.results import Results


@brief
@dataclass
class Table(Results):
    """Results of all rows by name: times and memory by length, and the error against another backend."""

    file: ClassVar[str] = "complexity.json"

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The records of the rows, by name."""
        return self.cases

    @property
    def our_mistakes(self) -> list[str]:
        """Rows with a wrong result or none."""
        return [f"{name}: {row['reason']}" for name, row in self.rows.items() if "reason" in row]


# Squares, so that a stride of sqrt(n) divides the length.
LENGTHS = tuple(side**2 for side in (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536))
CHECKED_AT, CLOSE = 1024, 1e-4  # length of the check; accepted error relative to the largest number
PROGRAM = "import sys; from regard_lab.bench.complexity.measuring import answer_parent; answer_parent(sys.argv[1])"
Point = dict[str, Any]


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Args:
        trusted: a length counts if its call takes at least this many seconds.
        wanted: the least number of lengths that count.
        reach: the least length that every row is measured at, to find crossovers.
        longest: the most seconds of a call; a row ends before a length that would take longer.
        pace: number of samples of each length.
    """

    trusted: float
    wanted: int
    reach: int
    longest: float
    pace: Pace


EFFORTS = {  # by `quick`
    False: Effort(0.020, 4, 192**2, 8.0, Pace(rounds=5, slow_rounds=2)),
    True: Effort(0.004, 3, 48**2, 0.5, Pace(rounds=3, slow_rounds=1, slow=0.2)),
}


def is_right(row: Row) -> float | None:
    """The error against another backend at a short length, relative to the largest number; None without another."""
    call = row.prepare(CHECKED_AT)
    if call.expected is None:
        return None
    expected = call.expected()
    return float((call.run() - expected).abs().max() / expected.abs().max())


def measure_times(
    row: Row, effort: Effort, tell: Callable[[str], None], lengths: Iterable[int]
) -> tuple[list[Point], str | None]:
    """CPU seconds on 1 thread at increasing lengths; and the reason if a length was refused, else None."""
    points: list[Point] = []
    with threads(1):
        for n in lengths:
            if _enough(row, effort, points, n):
                break
            tell(f"{row.name}: time at n={n:,}")
            try:
                call = row.prepare(n)
            except UnsupportedError as refusal:
                return points, f"n={n:,} was refused: {_short(refusal)}"
            times = take_turns({row.name: call.run}, time.process_time, effort.pace)[row.name]
            points.append({"length": n, "operations": call.operations} | times.to_dict())
    return points, None


def _short(refusal: UnsupportedError) -> str:
    """A plan's refusal without the description of the problem and without the other backends."""
    text = str(refusal)
    memory = re.search(r"(only|every) backend", text)
    return (text[memory.start() :] if memory else text).partition(" (")[0]


def _enough(row: Row, effort: Effort, points: list[Point], n: int) -> bool:
    if not points:
        return False
    if row.longest is not None and n > row.longest:
        return True
    last = points[-1]
    if last["median"] * row.growth.of(n) / row.growth.of(last["length"]) > effort.longest:
        return True
    trusted = sum(point["median"] >= effort.trusted for point in points)
    return trusted >= effort.wanted and last["length"] >= effort.reach


def measure_memory(name: str, lengths: list[int]) -> list[Point]:
    """Measure the peak memory of a row beside its tensors at each length, in a separate process.

    Raises:
        RegardError: the process failed; the message has the last line of its error output.
    """
    asked = json.dumps({"row": name, "lengths": lengths})
    done = subprocess.run([sys.executable, "-c", PROGRAM, asked], capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RegardError(f"the memory of {name} was not measured: {words[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def memory_here(row: Row, lengths: list[int]) -> list[Point]:
    """Measure the same in this process, after a short call that loads libraries."""
    row.prepare(CHECKED_AT).run()
    points = []
    for n in lengths:
        call = row.prepare(n)
        points.append({"length": n, "bytes": peak_of(call.run)})
        del call
    return points


def answer_parent(asked: str) -> None:
    """The main function of the separate process."""
    from regard_lab.bench.complexity.rows import ROWS

    wanted = json.loads(asked)
    torch.set_num_threads(1)
    sys.stdout.write(f"{json.dumps(memory_here(ROWS[wanted['row']], wanted['lengths']))}\n")
