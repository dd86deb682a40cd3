"""A pattern drawn with characters, one line for each query, and what a stack of layers learns from."""

from __future__ import annotations

import torch

from regard.errors import ArgumentError
from regard.patterns.base import Pattern

MAY_NOT, LEARNS, MAY_LOOK = "·□■"
LARGEST = 200


def draw(pattern: Pattern, q_len: int, k_len: int, *, q_start: int | None = None, layers: int = 1) -> str:
    """Lines of squares (may look) and dots (may not), queries down, keys across, with a ruler of positions.

    With more than one layer, empty squares are positions from which a query learns through other positions. Patterns
    that differ by batch row or head are drawn for the first of each, and the title says so.

    >>> from regard.patterns import CausalWindow
    >>> print(draw(CausalWindow(2), 3, 3, layers=2))
    causal_window(2): 5 of 9 pairs, 6 through 2 layers
        0 1 2
      0 ■ · ·
      1 ■ ■ ·
      2 □ ■ ■
    """
    if not (1 <= q_len <= LARGEST and 1 <= k_len <= LARGEST):
        raise ArgumentError(f"{q_len} x {k_len} pairs do not fit a terminal; draw 1 to {LARGEST} each way")
    marks, title = drawn_pairs(pattern, q_len, k_len, q_start=q_start, layers=layers)
    first = k_len - q_len if q_start is None else q_start
    margin = max(len(str(position)) for position in (first, first + q_len - 1, k_len - 1)) + 2
    ruler = " " * margin + " " + " ".join(str(key % 10) for key in range(k_len))
    return "\n".join([f"{pattern}: {title}", ruler, *_lines(marks, first, margin)])


def drawn_pairs(
    pattern: Pattern, q_len: int, k_len: int, *, q_start: int | None = None, layers: int = 1
) -> tuple[torch.Tensor, str]:
    """What a drawing shows of each pair, and how many pairs there are, in words.

    Returns:
        (q_len, k_len): 2 for an allowed pair, 1 for one that a stack of layers joins, 0 for neither.

    Raises:
        ArgumentError: a stack whose queries are not the last positions of its keys.
    """
    allowed = pattern.dense(q_len, k_len, q_start=q_start)
    words = f"{int(allowed.sum()):,} of {allowed.numel():,} pairs"
    shown = allowed[0, 0] if allowed.dim() == 4 else allowed
    marks = shown.to(torch.int8) * 2
    if layers > 1:
        if q_start not in (None, k_len - q_len):
            raise ArgumentError(f"a stack's queries are the last positions of its keys; q_start is {q_start}")
        joined = learned(pattern, q_len, k_len, layers)
        marks = torch.maximum(marks, joined.to(torch.int8))
        words += f", {int(joined.sum()):,} through {layers} layers"
    return marks, words + (", drawn for the first batch row and head" if allowed.dim() == 4 else "")


def _lines(marks: torch.Tensor, first: int, margin: int) -> list[str]:
    signs = (MAY_NOT, LEARNS, MAY_LOOK)
    return [
        f"{first + row:>{margin}} " + " ".join(signs[mark] for mark in line) for row, line in enumerate(marks.tolist())
    ]


def learned(pattern: Pattern, q_len: int, k_len: int, layers: int) -> torch.Tensor:
    """The positions from which each of the last queries can learn through a stack of layers with this pattern.

    Residual connections keep the query's own position. Heads of a layer feed all heads of the next, so a pair counts if
    any head allows it; a pattern that differs by batch row is taken for the first one.

    Args:
        pattern: what each layer allows among all `k_len` positions.
        q_len: rows of the answer, the last positions; at most `k_len`.
        k_len: positions of the text.
        layers: 1 or more.

    Returns:
        Booleans (q_len, k_len).

    Raises:
        ArgumentError: more queries than positions, or no layer.

    >>> from regard.patterns import CausalWindow
    >>> learned(CausalWindow(2), 1, 5, layers=3).int().tolist()
    [[0, 1, 1, 1, 1]]
    """
    if q_len > k_len:
        raise ArgumentError(f"{q_len} queries of a text of {k_len} positions; a stack needs a position for every query")
    if layers < 1:
        raise ArgumentError(f"a stack of {layers} layers; it has 1 or more")
    allowed = pattern.dense(k_len, k_len)
    allowed = allowed[0].any(0) if allowed.dim() == 4 else allowed
    one = (allowed | torch.eye(k_len, dtype=torch.bool, device=allowed.device)).float()
    reached = torch.eye(k_len, device=allowed.device)[k_len - q_len :]
    for _ in range(min(layers, k_len)):  # no path between k_len positions needs more steps
        further = (reached @ one > 0).float()
        if torch.equal(further, reached):
            break
        reached = further
    return reached > 0
