"""Measures time and memory of one row after the other at growing lengths; the files are written after every row."""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.complexity.memory import measure_memory
from benchmarks.complexity.report import command_for, write_table
from benchmarks.complexity.results import QUICK, THOROUGH, CostTable, Effort
from benchmarks.complexity.rows import ROWS, CostRow
from regard.errors import RegardError, UnsupportedError
from regard_lab.bench.measuring import take_turns, threads
from regard_lab.bench.running import begin, chosen_of, measure_missing
from regard_lab.text.remarks import Tell, silent

# Squares, so that a stride of sqrt(n) divides the length.
SIDES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)
LENGTHS = tuple(side**2 for side in SIDES)
CHECKED_LENGTH = 1024
LARGEST_ERROR = 1e-4  # relative to the largest number of the output
SHORTEST_HELD = 1024  # the memory of shorter calls is too small to measure

Record = dict[str, Any]


@dataclass
class Timings:
    """The CPU times of a row by length; `refusal` says which length was refused, and why, or is None."""

    points: list[Record]
    refusal: str | None = None


def error_of(row: CostRow) -> float | None:
    """The error against another backend at a short length, relative to the largest number; None without another."""
    call = row.prepare(CHECKED_LENGTH)
    if call.expected is None:
        return None
    expected = call.expected()
    difference = call.run() - expected
    return float(difference.abs().max() / expected.abs().max())


def measure_times(row: CostRow, effort: Effort, tell: Tell, lengths: Iterable[int]) -> Timings:
    """CPU seconds on 1 thread at increasing lengths, until enough of them are measured or one is refused."""
    timings = Timings([])
    with threads(1):
        for n in lengths:
            if _is_enough(row, effort, timings.points, n):
                break
            tell(f"{row.name}: time at n={n:,}")
            try:
                call = row.prepare(n)
            except UnsupportedError as refusal:
                timings.refusal = f"n={n:,} was refused: {_shortened(refusal)}"
                break
            times = take_turns({row.name: call.run}, time.process_time, effort.pace)[row.name]
            point = {"length": n, "operations": call.operations}
            timings.points.append(point | times.to_dict())
    return timings


def _shortened(refusal: UnsupportedError) -> str:
    """A plan's refusal without the description of the problem and without the other backends."""
    text = str(refusal)
    about_memory = re.search(r"(only|every) backend", text)
    if about_memory:
        text = text[about_memory.start() :]
    return text.partition(" (")[0]


def _is_enough(row: CostRow, effort: Effort, points: list[Record], n: int) -> bool:
    """Whether the row ends before the length n."""
    if not points:
        return False
    if row.longest is not None and n > row.longest:
        return True

    last = points[-1]
    growth = row.growth.of(n) / row.growth.of(last["length"])
    if last["median"] * growth > effort.longest:
        return True
    trusted = sum(point["median"] >= effort.trusted for point in points)
    return trusted >= effort.wanted and last["length"] >= effort.reach


def run_complexity(
    names: Iterable[str] = (),
    *,
    quick: bool = False,
    out: Path | None = None,
    resume: bool = False,
    tell: Tell = silent,
) -> CostTable:
    """Measure rows on the CPU; after each, write `complexity.json` and `complexity.md`.

    Args:
        names: keys of `ROWS`; all by default.
        quick: shorter lengths, with less accurate exponents.
        out: the folder of the results; None to write nothing.
        resume: continue the results in `out`.
        tell: called with a message before each step.

    Returns:
        The table, with `resume` including rows measured before.

    Raises:
        ArgumentError: an unknown row, or results that were measured in another environment.
        DataError: there is nothing to resume.
    """
    chosen = chosen_of("row", names, ROWS)
    command = command_for(chosen, quick)
    table = begin(CostTable, out, quick=quick, resume=resume, device="cpu", command=command)

    def measure(name: str) -> Record:
        return measure_row(ROWS[name], quick, tell)

    return measure_missing(table, chosen, out, tell, measure, write_table)


def measure_row(row: CostRow, quick: bool, tell: Tell) -> Record:
    """The record of a row; a wrong or failed row has a "reason" and no times."""
    effort = QUICK if quick else THOROUGH
    try:
        error = error_of(row)
        # "not <=" refuses a NaN too
        if error is not None and not error <= LARGEST_ERROR:
            raise RegardError(
                f"at n={CHECKED_LENGTH:,} its relative error is {error:.2g}, above "
                f"{LARGEST_ERROR:g}"
            )
        timings = measure_times(row, effort, tell, LENGTHS)
    except Exception as failure:
        reason = f"{type(failure).__name__}: {str(failure).splitlines()[0]}"
        return {"times": [], "memory": [], "reason": reason}

    record: Record = {"error": error, "times": timings.points, "memory": []}
    if timings.refusal is not None:
        record["ended"] = timings.refusal
    lengths = [point["length"] for point in timings.points if point["length"] >= SHORTEST_HELD]
    if lengths:
        tell(f"{row.name}: memory")
        try:
            record["memory"] = measure_memory(row.name, lengths)
        except RegardError as failure:
            record["memory_reason"] = str(failure)
    return record
