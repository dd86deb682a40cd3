"""Patterns of the rows of one call, such as a mask: what they are for a part of the call, and where its rows stand."""

from __future__ import annotations

from regard.patterns.base import Pattern


class RowsOfOneCall(Pattern, enrol=False):
    """A pattern that holds something for each row of a call, not for positions."""

    of_one_call = True

    def placed(self, first: int | None, heads: int) -> Pattern:
        """The pattern of a call whose first query has the position `first`, which may differ by batch row (None)."""
        return self

    def of_queries(self, rows: range, k_len: int) -> Pattern:
        """The pattern for a call of these rows and the first `k_len` keys alone."""
        raise NotImplementedError(f"{type(self).__name__} does not define what some rows may see")


def placed(pattern: Pattern, first: int | None, heads: int) -> Pattern:
    """The pattern for the rows of one call, asked for when a call is checked; only patterns `of_one_call` change.

    Args:
        pattern: the pattern of the call.
        first: the position of the first query; None where batch rows differ.
        heads: the query heads of the call.
    """
    if isinstance(pattern, RowsOfOneCall):
        return pattern.placed(first, heads)
    if not pattern.of_one_call:
        return pattern
    return pattern.mapped(lambda part: placed(part, first, heads))


def of_queries(pattern: Pattern, rows: range, k_len: int) -> Pattern:
    """The pattern for a call of these rows and the first `k_len` keys alone, where it holds rows of a call."""
    if isinstance(pattern, RowsOfOneCall):
        return pattern.of_queries(rows, k_len)
    if not pattern.of_one_call:
        return pattern
    return pattern.mapped(lambda part: of_queries(part, rows, k_len))
