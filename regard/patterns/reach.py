"""How far a pattern looks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reach:
    """Positions back and ahead that a query can learn from, its own aside; None for all there are."""

    back: int | None
    ahead: int | None

    def stacked(self, layers: int) -> Reach:
        """Of as many layers, each reaching on from where the one below ended."""
        return Reach(*(None if far is None else max(0, far) * layers for far in (self.back, self.ahead)))

    def nearer(self, other: Reach) -> Reach:
        """What both reach."""
        return Reach(*(_least(*ends) for ends in zip(self._ends, other._ends, strict=True)))

    def farther(self, other: Reach) -> Reach:
        """What either reaches."""
        pairs = zip(self._ends, other._ends, strict=True)
        return Reach(*(None if one is None or two is None else max(one, two) for one, two in pairs))

    @property
    def _ends(self) -> tuple[int | None, int | None]:
        return self.back, self.ahead

    def __str__(self) -> str:
        words = [("everything" if far is None else str(far)) for far in self._ends]
        return f"{words[0]} back, {words[1]} ahead"


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
