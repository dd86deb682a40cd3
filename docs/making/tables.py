"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(columns: str, rows: Iterable[Sequence[object]], left: int = 99) -> str:
    """A table; `columns` are separated by bars, and those from number `left` on are aligned on the right.

    >>> print(table("word | letters", [("cat", 3)], left=1))
    | word | letters |
    |---|---:|
    | cat | 3 |
    """
    count = len(columns.split(" | "))
    lines = [f"| {columns} |", f"|{'---|' * min(left, count)}{'---:|' * (count - left)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])
