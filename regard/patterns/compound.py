"""What a pattern made of others has from its parts."""

from __future__ import annotations

from math import lcm

from regard.errors import ArgumentError
from regard.patterns.base import Pattern

DEEPEST = 64  # levels of patterns made of patterns


class Compound(Pattern):
    """A pattern made of other patterns."""

    def made_of(self) -> tuple[Pattern, ...]:
        """The patterns it is made of."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it is made of")

    @property
    def levels(self) -> int:  # type: ignore[override]
        found = self.__dict__.get("_levels")
        if found is None:
            found = 1 + max(part.levels for part in self.made_of())
            object.__setattr__(self, "_levels", found)
        return found

    @property
    def query_free(self) -> bool:  # type: ignore[override]
        return all(part.query_free for part in self.made_of())

    @property
    def compares_positions(self) -> bool:  # type: ignore[override]
        return any(part.compares_positions for part in self.made_of())

    @property
    def by_value(self) -> bool:  # type: ignore[override]
        return all(part.by_value for part in self.made_of())

    @property
    def structured(self) -> bool:  # type: ignore[override]
        return all(part.structured for part in self.made_of())

    @property
    def varies_by_head(self) -> bool:  # type: ignore[override]
        return any(part.varies_by_head for part in self.made_of())

    @property
    def varies_by_row(self) -> bool:  # type: ignore[override]
        return any(part.varies_by_row for part in self.made_of())

    @property
    def by_length(self) -> bool:  # type: ignore[override]
        return any(part.by_length for part in self.made_of())

    @property
    def batch_rows(self) -> int:
        return max(part.batch_rows for part in self.made_of())

    @property
    def period(self) -> int | None:
        return _together([part.period for part in self.made_of()])

    @property
    def key_period(self) -> int | None:
        return _together([part.key_period for part in self.made_of()])

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        for part in self.made_of():
            part.check(batch, heads, q_len, k_len)


def _together(periods: list[int | None]) -> int | None:
    return None if None in periods else lcm(*(period for period in periods if period))


def shallow(pattern: Pattern) -> Pattern:
    """The pattern, if it is not made of too many levels of patterns for its text to be read back."""
    if pattern.levels > DEEPEST:
        raise ArgumentError(
            f"a pattern of {pattern.levels} levels of patterns inside each other; {DEEPEST} are the most, so join "
            f"more parts by one sign instead of nesting them"
        )
    return pattern
