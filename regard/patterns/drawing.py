"""A pattern drawn with characters: one line a query, one column a key."""

from __future__ import annotations

import torch

from regard.errors import ArgumentError
from regard.patterns.base import Pattern

MAY_LOOK, MAY_NOT = "■", "·"
LARGEST = 200


def draw(pattern: Pattern, q_len: int, k_len: int, *, q_start: int | None = None) -> str:
    """Lines of squares (may look) and dots (may not), queries down, keys across, with a ruler of positions.

    Patterns that differ by batch row or head are drawn for the first of each, and the drawing says so.

    >>> from regard.patterns import CausalWindow
    >>> print(draw(CausalWindow(2), 3, 3))
    causal_window(2): 5 of 9 pairs
        0 1 2
      0 ■ · ·
      1 ■ ■ ·
      2 · ■ ■
    """
    if not (1 <= q_len <= LARGEST and 1 <= k_len <= LARGEST):
        raise ArgumentError(f"{q_len} x {k_len} pairs do not fit a terminal; draw 1 to {LARGEST} each way")
    allowed = pattern.dense(q_len, k_len, q_start=q_start)
    title = f"{pattern}: {int(allowed.sum())} of {allowed.numel()} pairs"
    if allowed.dim() == 4:
        title += ", drawn for the first batch row and head"
        allowed = allowed[0, 0]
    first = k_len - q_len if q_start is None else q_start
    margin = max(len(str(position)) for position in (first, first + q_len - 1, k_len - 1)) + 2
    ruler = " " * margin + " " + " ".join(str(key % 10) for key in range(k_len))
    return "\n".join([title, ruler, *_lines(allowed, first, margin)])


def _lines(allowed: torch.Tensor, first: int, margin: int) -> list[str]:
    return [
        f"{first + row:>{margin}} " + " ".join(MAY_LOOK if seen else MAY_NOT for seen in line)
        for row, line in enumerate(allowed.tolist())
    ]
