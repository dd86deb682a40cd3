"""Measures time and memory of one row after the other at growing lengths; the files are written after every row."""

import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from regard.errors import RegardError, UnsupportedError
from regard_lab.bench.complexity.report import EFFORTS, CostTable, Effort, write_table
from regard_lab.bench.complexity.rows import ROWS, CostRow
from regard_lab.bench.measuring import call_apart, peak_of, take_turns, threads
from regard_lab.bench.running import begin, chosen_of, measure_missing

# Squares, so that a stride of sqrt(n) divides the length.
LENGTHS = tuple(
    side**2 for side in (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)
)
CHECKED_AT, CLOSE = 1024, 1e-4  # length of the check; accepted error relative to the largest number
Point = dict[str, Any]


def is_right(row: CostRow) -> float | None:
    """The error against another backend at a short length, relative to the largest number; None without another."""
    call = row.prepare(CHECKED_AT)
    if call.expected is None:
        return None
    expected = call.expected()
    return float((call.run() - expected).abs().max() / expected.abs().max())


def measure_times(
    row: CostRow, effort: Effort, tell: Callable[[str], None], lengths: Iterable[int]
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


def _enough(row: CostRow, effort: Effort, points: list[Point], n: int) -> bool:
    if not points:
        return False
    if row.longest is not None and n > row.longest:
        return True
    last = points[-1]
    if last["median"] * row.growth.of(n) / row.growth.of(last["length"]) > effort.longest:
        return True
    trusted = sum(point["median"] >= effort.trusted for point in points)
    return trusted >= effort.wanted and last["length"] >= effort.reach


def memory_of(row: str, lengths: list[int]) -> list[Point]:
    """The peak memory of a row beside its tensors at each length; a separate process calls it."""
    with threads(1):
        return memory_here(ROWS[row], lengths)


def memory_here(row: CostRow, lengths: list[int]) -> list[Point]:
    """The same of any row, after a short call that loads libraries."""
    row.prepare(CHECKED_AT).run()
    points = []
    for n in lengths:
        call = row.prepare(n)
        points.append({"length": n, "bytes": peak_of(call.run)})
        del call
    return points


SHORTEST_HELD = 1024  # the memory of shorter calls is too small to measure


def run_complexity(
    names: Iterable[str] = (),
    *,
    quick: bool = False,
    out: Path | None = None,
    resume: bool = False,
    tell: Callable[[str], None] = lambda line: None,
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
    command = ["regard bench complexity", *([] if set(chosen) == set(ROWS) else chosen)]
    table = begin(CostTable, out, quick=quick, resume=resume, device="cpu", command=command)

    return measure_missing(
        table, chosen, out, tell, lambda name: _measured(ROWS[name], quick, tell), write_table
    )


def _measured(row: CostRow, quick: bool, tell: Callable[[str], None]) -> dict[str, Any]:
    """The record of a row; a wrong or failed row has a "reason" and no times."""
    try:
        error = is_right(row)
        if error is not None and not error <= CLOSE:
            raise RegardError(
                f"at n={CHECKED_AT:,} its relative error is {error:.2g}, above {CLOSE:g}"
            )
        times, ended = measure_times(row, EFFORTS[quick], tell, LENGTHS)
    except Exception as failure:
        return {
            "times": [],
            "memory": [],
            "reason": f"{type(failure).__name__}: {str(failure).splitlines()[0]}",
        }
    record: dict[str, Any] = {"error": error, "times": times, "memory": []} | (
        {} if ended is None else {"ended": ended}
    )
    held = [point["length"] for point in times if point["length"] >= SHORTEST_HELD]
    if held:
        tell(f"{row.name}: memory")
        try:
            record["memory"] = call_apart(memory_of, row.name, row=row.name, lengths=held)
        except RegardError as failure:
            record["memory_reason"] = str(failure)
    return record
