"""What one may ask about an attention call, besides its output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from regard.errors import ArgumentError


@dataclass(frozen=True)
class TopKeys:
    """The `count` keys with the largest weights of each query."""

    count: int

    def __str__(self) -> str:
        return f"top_keys({self.count})"


Want = str | TopKeys
NAMES = ("log_sum_exp", "entropy", "received", "weights")


def top_keys(count: int) -> TopKeys:
    """Ask for the `count` largest weights of each query; missing ones have index -1 and weight 0.

    >>> print(top_keys(8))
    top_keys(8)
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ArgumentError(f"top_keys({count!r}): the number of keys is 1 or more")
    return TopKeys(count)


def checked_wants(want: Iterable[Want] | Want) -> tuple[Want, ...]:
    """The statistics asked for, each once, or a refusal that names those there are."""
    asked = (want,) if isinstance(want, str | TopKeys) else tuple(want)
    for one in asked:
        if not isinstance(one, TopKeys) and one not in NAMES:
            raise ArgumentError(f"want={one!r} is no statistic; there are {', '.join(NAMES)} and top_keys(n)")
    if sum(isinstance(one, TopKeys) for one in asked) > 1:
        raise ArgumentError("want holds top_keys twice; ask for the larger number once")
    return tuple(dict.fromkeys(asked))
