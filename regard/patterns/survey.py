"""Sums over row blocks: exact if there are few, otherwise estimated from a sample.

`regard plan` takes sizes larger than any memory, so the time to plan must not grow with them. Exact code spends a
`Budget`. When that is used up, `estimated` takes a sample of the blocks, with more of them near rows where a pattern
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from regard.patterns.base import Pattern, Turns
from regard.patterns.lattices import simplified

LOOKS = 1 << 10  # row blocks evaluated one by one before a sample is taken; one with many runs counts as several
SAMPLE = 256  # blocks of a sample; fewer if each is expensive, but at least LEAST between two changes of a pattern
LEAST = 4
MOST_TURNS = (
    128  # rows at which a window reaches an end of the keys; rows at which a set of queries ends are not limited
)
PARTS = 1 << 10  # sums of fractions are kept in units of 1 / PARTS
GOLDEN = 0.6180339887498949  # its multiples are spread evenly modulo 1 (low-discrepancy sequence)


class SpentError(Exception):
    """A budget is used up. The planner catches it and estimates instead."""


@dataclass
class Budget:
    """The number of blocks that may still be evaluated; None for no limit."""

    left: int | None = None

    def spend(self, runs: int = 1) -> None:
        """Count the evaluation of a block with this many runs of keys.

        Raises:
            SpentError: nothing is left.
        """
        if self.left is None:
            return
        self.left -= look_cost(runs)
        if self.left < 0:
            raise SpentError

    def need(self, looks: int) -> None:
        """Raise a SpentError at once if less is left than will be needed."""
        if self.left is not None and looks > self.left:
            raise SpentError


def look_cost(runs: int) -> int:
    """For how many evaluations a block counts: more for a block with many runs of keys."""
    return max(1, runs // 4)


def estimated(
    blocks: int, look: Callable[[int], tuple[float, ...]], turns: Iterable[int], cost: int = 1
) -> tuple[int, ...]:
    """An estimate of the sum of `look(block)` over blocks 0 .. blocks - 1, separately for each number it returns.

    Args:
        blocks: number of blocks.
        look: a function from a block to the numbers that it adds.
        turns: blocks at which the summand may change; between two of them it changes little or repeats.
        cost: for how many evaluations a block counts.

    >>> round(estimated(10**18, lambda block: (block,), ())[0] / (10**36 / 2), 4)
    1.0
    """
    cuts = sorted({0, blocks, *(edge for turn in turns for edge in (turn, turn + 1) if 0 < edge < blocks)})
    spans = [range(*cut) for cut in pairwise(cuts)]
    share = max(LEAST, SAMPLE // max(1, cost * len(spans)))
    total: list[int] | None = None
    for span in spans:
        sample = _spread(span, share)
        sums = [sum(numbers) for numbers in zip(*map(look, sample), strict=True)]
        scaled = [_whole(one) * len(span) // (len(sample) * PARTS) for one in sums]
        total = scaled if total is None else [one + other for one, other in zip(total, scaled, strict=True)]
    return tuple(total or ())


def _whole(number: float) -> int:
    """The number in units of 1 / PARTS, rounded to a whole number, since whole numbers are exact at any size."""
    return number * PARTS if isinstance(number, int) else round(number * PARTS)


def _spread(span: range, count: int) -> list[int]:
    """One block from each of `count` equal parts of a span, at offsets without a common period."""
    if len(span) <= count:
        return list(span)
    edges = [span.start + len(span) * at // count for at in range(count + 1)]
    return [start + int((at + 0.5) * GOLDEN % 1 * (stop - start)) for at, (start, stop) in enumerate(pairwise(edges))]


def turning_rows(pattern: Pattern, q_start: int, q_len: int, k_len: int) -> list[int]:
    """Rows at which the visible keys may change: ends of query sets, and of key sets as a window reaches them."""
    turns = simplified(pattern).turns() | Turns(keys={0, k_len}, away={0})
    met = sorted({end + far for end in turns.keys for far in turns.away})
    step = -(-len(met) // MOST_TURNS)
    rows = {position - q_start for position in (*turns.queries, *met[:: max(1, step)])}
    return sorted(row for row in rows if 0 <= row < q_len)
