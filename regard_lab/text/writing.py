"""Tables and numbers as lines of text and of Markdown."""

import math
from collections.abc import Callable, Iterable, Sequence

LARGE = 1000  # numbers from here on have three digits instead of decimals


def aligned(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Rows of cells as lines of text, with the cells of a column below each other.

    >>> print(*aligned([("word", "letters"), ("cat", "3")], "  "), sep="\\n")
      word  letters
      cat   3
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = map(str.ljust, row, widths)
        lines.append(f"{indent}{'  '.join(cells)}".rstrip())
    return lines


def without_bars(cell: str) -> str:
    """A cell of Markdown; the | of a pattern is escaped, since it would begin a column."""
    return cell.replace("|", "\\|")


def markdown_table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    escape: Callable[[str], str] = without_bars,
) -> list[str]:
    """A table of Markdown, as lines.

    >>> markdown_table(("a", "b"), [(1, "causal | fixed(2)")])
    ['| a | b |', '| --- | --- |', '| 1 | causal \\\\| fixed(2) |']
    """
    lines = []
    for row in (head, ["---"] * len(head), *rows):
        cells = [escape(str(cell)) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def decimal(value: float, decimals: int) -> str:
    """A number as it is printed in tables: with so many decimals, or three digits if it is large.

    >>> [decimal(x, 3) for x in (0.12345, -1.5, -0.0001, 3, 123456.0, float("-inf"))]
    ['0.123', '−1.500', '0.000', '3', '1.23e+05', '−∞']
    """
    if value == -math.inf:
        return "−∞"
    if isinstance(value, int):
        printed = str(value)
    elif abs(value) < LARGE:
        printed = f"{value:z.{decimals}f}"
    else:
        printed = f"{value:.3g}"
    return printed.replace("-", "−")


def seconds(value: float) -> str:
    """A time in a suitable unit.

    >>> seconds(0.0000123), seconds(0.0456), seconds(3.21)
    ('12.3 µs', '45.6 ms', '3.21 s')
    """
    if value * 1e6 < 999.5:
        return f"{value * 1e6:.3g} µs"
    if value * 1e3 < 999.5:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s"


def duration(seconds: float) -> str:
    """Seconds as minutes and seconds, or hours.

    >>> duration(75), duration(7300)
    ('1:15', '2:01:40')
    """
    minutes, seconds_of_minute = divmod(round(seconds), 60)
    hours, minutes_of_hour = divmod(minutes, 60)
    if hours == 0:
        return f"{minutes}:{seconds_of_minute:02}"
    return f"{hours}:{minutes_of_hour:02}:{seconds_of_minute:02}"
