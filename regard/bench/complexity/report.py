"""The table as people read it: lines of text, or a page of Markdown."""

from __future__ import annotations

from pathlib import Path

from regard.bench.complexity.measuring import EFFORTS
from regard.bench.complexity.reading import Fit, Reading, read_row
from regard.bench.complexity.row import Row
from regard.bench.complexity.rows import ROWS
from regard.bench.complexity.table import Table
from regard.storage.files import replace_file

FILE = "complexity.md"
HEAD = ("layer", "promised", "sequential", "path", "time n^", "memory n^", "cheaper than exact from")


def describe_table(table: Table) -> list[str]:
    """The table in lines of text."""
    rows = [HEAD, *(_cells(ROWS[name], reading) for name, reading in _readings(table).items())]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, "", summary(table), *_remarks(table)]


def write_table(table: Table, folder: Path) -> None:
    """Write `complexity.md`: where it was measured, the table, its remarks, and every point."""
    here, effort = table.environment, EFFORTS[table.quick]
    lines = [
        "# regard bench complexity", "", f"`{table.command}`", "",
        f"regard {here['regard']}, torch {here['torch']}, Python {here['python']}.",
        f"{here['system']}, {here['processor']}; {here['cores']} cores. CPU time on 1 thread, forward; one text, one",
        "head, 64 numbers a position.", "",
        "An exponent is fitted to the logarithms of medians over lengths, and stands beside the one that the same fit",
        f"finds where the promise is kept to the letter; only lengths of {1e3 * effort.trusted:g} ms or more count,",
        "and of 4 MiB or more. Memory is the peak of a process of its own beside the layer's tensors.", "",
        summary(table), "", _line(HEAD), _line(("---",) * len(HEAD)),
        *(_line(_cells(ROWS[name], reading)) for name, reading in _readings(table).items()), "",
        *(f"- {remark}" for remark in _remarks(table)), "",
        "## Every point", "", "| layer | n | CPU time | memory |", "| --- | --- | --- | --- |", *_points(table),
    ]  # fmt: skip
    replace_file(folder / FILE, ("\n".join(lines).rstrip() + "\n").encode())


def summary(table: Table) -> str:
    """How many rows keep their promise."""
    readings = _readings(table)
    near = sum(reading.time.near for reading in readings.values())
    return f"{near} of {len(readings)} rows within 0.15 of the promised exponent of time, which stands in brackets."


def _readings(table: Table) -> dict[str, Reading]:
    trusted = EFFORTS[table.quick].trusted
    measured = {name: table.rows[name] for name in ROWS if name in table.rows}
    return {
        name: read_row(ROWS[name], record, table.rows.get(ROWS[name].exact), trusted)
        for name, record in measured.items()
    }


def _cells(row: Row, reading: Reading) -> tuple[str, ...]:
    return (
        row.title, row.cost, row.sequential, row.path, _exponents(reading.time), _exponents(reading.memory),
        reading.crossover,
    )  # fmt: skip


def _exponents(fit: Fit) -> str:
    """Found beside promised.

    >>> _exponents(Fit(1.03, 1.0, (4, 8)))
    '1.03 (1.00)'
    """
    return "" if fit.found is None else f"{fit.found:.2f} ({fit.promised:.2f})"


def _remarks(table: Table) -> list[str]:
    """What is said of each row beside its numbers, with its source."""
    return [
        f"{ROWS[name].title}: {'; '.join([*reading.remarks, *filter(None, [ROWS[name].correction])])}."
        for name, reading in _readings(table).items()
        if reading.remarks or ROWS[name].correction
    ]


def _points(table: Table) -> list[str]:
    lines = []
    for name in table.rows:
        held = {point["length"]: f"{point['bytes'] / 2**20:.1f} MiB" for point in table.rows[name]["memory"]}
        for point in table.rows[name]["times"]:
            n = point["length"]
            lines.append(_line((ROWS[name].title, f"{n:,}", f"{1e3 * point['median']:.3g} ms", held.get(n, ""))))
    return lines


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
