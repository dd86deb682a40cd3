"""What is common to patterns that are made of other patterns."""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm

import torch

from regard.patterns.base import Origins, Pattern


class Compound(Pattern, enrol=False):
    """A pattern made of other patterns."""

    def made_of(self) -> tuple[Pattern, ...]:
        """The patterns it is made of."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it is made of")

    @property
    def levels(self) -> int:  # type: ignore[override]
        levels = self.__dict__.get("_levels")
        if levels is None:
            levels = 1 + max(part.levels for part in self.made_of())
            object.__setattr__(self, "_levels", levels)
        return levels

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
    def by_numbers(self) -> bool:  # type: ignore[override]
        return all(part.by_numbers for part in self.made_of())

    @property
    def of_one_call(self) -> bool:  # type: ignore[override]
        return any(part.of_one_call for part in self.made_of())

    @property
    def documents(self) -> tuple[torch.Tensor, ...]:
        return tuple(ids for part in self.made_of() for ids in part.documents)

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

    def _moved(self, origins: Origins) -> Pattern | None:
        parts = []
        for part in self.made_of():  # in a loop, which the compiler follows
            moved = part.moved(origins)
            if moved is None:
                return None
            parts.append(moved)
        following = iter(parts)
        return self.mapped(lambda part: next(following))

    def lattice_ends(self) -> set[int] | None:
        ends = [part.lattice_ends() for part in self.made_of()]
        known = [one for one in ends if one is not None]
        return set().union(*known) if len(known) == len(ends) else None

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        for part in self.made_of():
            part.check(batch, heads, q_len, k_len)


def most_kept(parts: Iterable[Pattern]) -> tuple[int, int] | None:
    """The first and last keys that a causal query may look at by any of the parts; None for all."""
    kept = [part.kept_keys() for part in parts]
    bounded = [one for one in kept if one is not None]
    firsts, lasts = zip(*bounded, strict=True) if bounded else ((), ())
    return (max(firsts), max(lasts)) if len(bounded) == len(kept) else None


def _together(periods: list[int | None]) -> int | None:
    return None if None in periods else lcm(*(period for period in periods if period))
