"""The table as text and as a page of Markdown."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.complexity.fits import LEAST_BYTES, Fit, read_table
from benchmarks.complexity.results import CostTable
from benchmarks.complexity.rows import ROWS
from regard.storage.files import replace_file
from regard_lab.bench.report import measured_on
from regard_lab.text.writing import aligned, markdown_table, seconds

FILE = "complexity.md"
HEAD = (
    "layer",
    "promised",
    "sequential",
    "path",
    "time exponent",
    "memory exponent",
    "cheaper than exact from",
)
ABOUT = """\
# Time and memory by length

How the cost of each layer grows with the length n of a text, compared with what its paper promises. An
exponent of 2 means that a text twice as long costs 4 times as much. Exponents are fitted to the logarithms
of the measured medians. The promised exponent is in brackets; it is fitted to the same lengths."""


def command_for(names: Iterable[str], quick: bool) -> str:
    """The command that measures these rows."""
    words = ["python -m benchmarks.complexity"]
    if set(names) != set(ROWS):
        words += names
    if quick:
        words.append("--quick")
    return " ".join(words)


def describe_table(table: CostTable) -> list[str]:
    """Format the table as lines of text."""
    return [*aligned([HEAD, *_rows(table)]), "", summary(table), *_remarks(table)]


def write_table(table: CostTable, folder: Path) -> None:
    """Write `complexity.md`: the table, remarks, every measurement, and how it was measured."""
    replace_file(folder / FILE, render_markdown(table).encode())


def render_markdown(table: CostTable) -> str:
    """The report as a page of Markdown."""
    lines = [
        *ABOUT.splitlines(),
        "",
        summary(table),
        "",
        *markdown_table(HEAD, _rows(table)),
        "",
        "## Remarks",
        "",
        *(f"- {remark}" for remark in _remarks(table)),
        "",
        "## Every measurement",
        "",
        *markdown_table(("layer", "n", "CPU time", "memory"), _points(table)),
        "",
        "## How it was measured",
        "",
        f"- Command: `{command_for(table.rows, table.quick)}`",
        "- One text and one head of 64 numbers, forward; CPU time on 1 thread",
        f"- Times below {1e3 * table.effort.trusted:g} ms and memory below "
        f"{LEAST_BYTES // 2**20} MiB are not used for a fit",
        "- Memory is the peak of a separate process beside the layer's tensors",
        *measured_on(table),
    ]
    return "\n".join(lines).rstrip() + "\n"


def summary(table: CostTable) -> str:
    """How many rows keep their promise."""
    readings = read_table(table).values()
    near = sum(reading.time.near for reading in readings)
    sentence = f"The exponent of time is within 0.15 of the promised one in {near} of {len(readings)} rows."

    memory_fits = [reading.memory for reading in readings if reading.memory.fitted is not None]
    if not memory_fits:
        return sentence
    near_or_below = sum(fit.near_or_below for fit in memory_fits)
    return (
        f"{sentence} That of memory is within 0.15 of it, or below, in {near_or_below} of "
        f"{len(memory_fits)}."
    )


def _rows(table: CostTable) -> Iterator[tuple[str, ...]]:
    for name, reading in read_table(table).items():
        row = ROWS[name]
        promised = (row.cost, row.sequential, row.path)
        exponents = (_exponents(reading.time), _exponents(reading.memory))
        yield row.title, *promised, *exponents, reading.crossover


def _exponents(fit: Fit) -> str:
    """The fitted exponent, with the promised one in brackets.

    >>> _exponents(Fit(1.03, 1.0, (4, 8)))
    '1.03 (1.00)'
    """
    return "" if fit.fitted is None else f"{fit.fitted:.2f} ({fit.promised:.2f})"


def _remarks(table: CostTable) -> Iterator[str]:
    """Remarks and corrections for each row."""
    for name, reading in read_table(table).items():
        remarks = list(reading.remarks)
        if ROWS[name].correction:
            remarks.append(ROWS[name].correction)
        if remarks:
            yield f"{ROWS[name].title}: {'; '.join(remarks)}."


def _points(table: CostTable) -> Iterator[tuple[str, ...]]:
    for name, record in table.rows.items():
        memory = {}
        for point in record["memory"]:
            memory[point["length"]] = f"{point['bytes'] / 2**20:.1f} MiB"
        for point in record["times"]:
            n = point["length"]
            yield ROWS[name].title, f"{n:,}", seconds(point["median"]), memory.get(n, "")
