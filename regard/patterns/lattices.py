"""Splits a pattern: into its leaves, and into a part on lattices and the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

from regard.patterns.algebra import NOTHING, Full, Many, Not, both, negate
from regard.patterns.base import Pattern
from regard.patterns.grid import Grid
from regard.patterns.ranges import Ranges, union
from regard.patterns.strided import Lattice

MOST_STRIDES = 4  # work multiplies: the residues of each stride are split by those of every other stride


def simplified(pattern: Pattern) -> Pattern:
    """The pattern in terms of its simplest parts.

    >>> from regard.patterns import parse
    >>> print(simplified(parse("causal & strided(4)")))
    causal & (lattice(4) | sliding_window(6))
    """
    simpler = pattern.structure()
    while simpler is not pattern:
        pattern, simpler = simpler, simpler.structure()
    return pattern.canonical()


def leaves(pattern: Pattern) -> list[Pattern]:
    """The parts that `&`, `|` and `~` join."""
    if isinstance(pattern, Many):
        return [leaf for part in pattern.parts for leaf in leaves(part)]
    return leaves(pattern.part) if isinstance(pattern, Not) else [pattern]


def off_queries(pattern: Pattern) -> tuple[Ranges, Pattern]:
    """The queries that a part of the pattern names, and the pattern without such parts.

    >>> from regard.patterns import parse
    >>> queries, others = off_queries(simplified(parse("causal & (prefix(2) | query_set(8, 9))")))
    >>> queries, str(others)
    ((range(8, 10),), 'causal & prefix(2)')
    """
    named = union(run for leaf in leaves(pattern) for run in leaf.named_queries)
    return named, _replaced(pattern, lambda leaf: bool(leaf.named_queries), NOTHING).canonical() if named else pattern


def _replaced(pattern: Pattern, chosen: Callable[[Pattern], bool], by: Pattern) -> Pattern:
    """The pattern with some of its leaves replaced."""
    if isinstance(pattern, Many | Not):
        return pattern.mapped(lambda part: _replaced(part, chosen, by))
    return by if chosen(pattern) else pattern


def off_lattices(pattern: Pattern) -> tuple[Pattern, list[tuple[int, Pattern]]]:
    """Splits a pattern into disjoint patterns: one without lattices, and one for each stride that lies on its lattice.

    Lattices that remove pairs, or on which the pattern has no known form, stay in the first pattern. All of them do if
    there are more than MOST_STRIDES strides.
    """
    on: list[tuple[int, Pattern]] = []
    strides = _strides(pattern)
    for stride in strides if len(strides) <= MOST_STRIDES else ():
        chosen = partial(_is_lattice, stride)
        off = _replaced(pattern, chosen, NOTHING).canonical()
        there = both(_replaced(pattern, chosen, Full()), negate(off))
        if there.on_lattice(stride, 0) is not None:
            on.append((stride, there))
            pattern = off
    return pattern, on


def alike_residues(pattern: Pattern, stride: int, grid: Grid) -> Iterable[range]:
    """The first rows of the residues of a stride, in ranges of residues with equal queries, keys and pattern."""
    rows = min(stride, grid.q_len)
    assert isinstance(grid.q_start, int)
    ends = pattern.lattice_ends()
    if ends is None:
        return (range(row, row + 1) for row in range(rows))
    edges = {0, grid.keys.start, grid.keys.stop, *ends}  # at their residues the number of positions changes
    turns = {grid.q_len % stride, *((position - grid.q_start) % stride for position in edges)}
    return [range(*cut) for cut in pairwise(sorted({0, rows, *(turn for turn in turns if turn < rows)}))]


def _is_lattice(stride: int, leaf: Pattern) -> bool:
    return isinstance(leaf, Lattice) and leaf.stride == stride


def _strides(pattern: Pattern) -> list[int]:
    """The strides of the lattices that add pairs and never remove any."""
    added: set[int] = set()
    taken: set[int] = set()

    def look(part: Pattern, negated: bool) -> None:
        if isinstance(part, Many):
            for one in part.parts:
                look(one, negated)
        elif isinstance(part, Not):
            look(part.part, not negated)
        elif isinstance(part, Lattice) and part.stride > 1:
            (taken if negated else added).add(part.stride)

    look(pattern, False)
    return sorted(added - taken)
