"""Measures a table row by row; the files are written after every row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from regard.arguments import suggest
from regard.errors import ArgumentError, RegardError
from regard_lab.bench.complexity.measuring import (
    CHECKED_AT,
    CLOSE,
    EFFORTS,
    LENGTHS,
    Table,
    is_right,
    measure_memory,
    measure_times,
)  # fmt: skip
from regard_lab.bench.complexity.report import draw_table, write_table
from regard_lab.bench.complexity.rows import ROWS, Row
from regard_lab.bench.running import begin

SHORTEST_HELD = 1024  # the memory of shorter calls is too small to measure


def run_complexity(
    names: Iterable[str] = (),
    *,
    quick: bool = False,
    out: Path | None = None,
    resume: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Table:
    """Measure rows on the CPU; after each, write `complexity.json`, `complexity.md` and curves.

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
    chosen = list(names) or list(ROWS)
    for name in chosen:
        if name not in ROWS:
            raise ArgumentError(f"no row is called {name!r}; {suggest(name, ROWS)}")
    command = ["regard bench complexity", *([] if set(chosen) == set(ROWS) else chosen)]
    table = begin(Table, out, quick=quick, resume=resume, device="cpu", command=command, tell=tell)
    for name in chosen:
        if name in table.rows:
            tell(f"{name}: measured before")
            continue
        table.rows[name] = _measured(ROWS[name], quick, tell)
        if out is not None:
            table.save(out)
            write_table(table, out)
            draw_table(table, out)
    return table


def _measured(row: Row, quick: bool, tell: Callable[[str], None]) -> dict[str, Any]:
    """The record of a row; a wrong or failed row has a "reason" and no times."""
    try:
        error = is_right(row)
        if error is not None and not error <= CLOSE:
            raise RegardError(f"at n={CHECKED_AT:,} its relative error is {error:.2g}, above {CLOSE:g}")
        times, ended = measure_times(row, EFFORTS[quick], tell, LENGTHS)
    except Exception as failure:
        return {"times": [], "memory": [], "reason": f"{type(failure).__name__}: {str(failure).splitlines()[0]}"}
    record: dict[str, Any] = {"error": error, "times": times, "memory": []} | (
        {} if ended is None else {"ended": ended}
    )
    held = [point["length"] for point in times if point["length"] >= SHORTEST_HELD]
    if held:
        tell(f"{row.name}: memory")
        try:
            record["memory"] = measure_memory(row.name, held)
        except RegardError as failure:
            record["memory_reason"] = str(failure)
    return record
