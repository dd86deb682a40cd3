"""Placeholders of a source: which ids a translation has once, in which order, and which it never has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from regard_lab.text.placeholders import code_pairs
from regard_lab.text.tokenisers import Tokeniser

MARKS = "%{}"


@dataclass(frozen=True)
class Once:
    """The reserved ids of a batch row: each of its texts has them at most once.

    Args:
        ids: that texts may have.
        after: for an id, the one that must stand before it.
        closes: for an id, the one that it closes; pairs are nested.
        banned: ids that the texts never have.
        latest: a text that must have all ids gets only the missing ones once it is this long; None for no limit.

    >>> once = Once((4, 5, 6), closes={6: 5})
    >>> once.allowed((4,)), once.allowed((4, 5)), once.allowed((6, 4, 5, 6))
    ([5], [6], [])
    """

    ids: tuple[int, ...]
    after: Mapping[int, int] = field(default_factory=dict)
    closes: Mapping[int, int] = field(default_factory=dict)
    banned: tuple[int, ...] = ()
    latest: int | None = None

    def allowed(self, written: Sequence[int]) -> list[int]:
        """The ids that may come after those that are written."""
        present = set(written)
        opened = []
        opening = set(self.closes.values())
        for identifier in written:
            if identifier in opening:
                opened.append(identifier)
            elif identifier in self.closes and opened:
                opened.pop()

        allowed = []
        for identifier in self.ids:
            before = self.after.get(identifier)
            is_early = before is not None and before not in present
            closed = self.closes.get(identifier)
            is_crossed = closed is not None and opened[-1:] != [closed]
            if identifier not in present and not is_early and not is_crossed:
                allowed.append(identifier)
        return allowed


@dataclass(frozen=True)
class SourcePlaceholders:
    """The placeholders of a source: their ids with their texts, and what a search must know of them."""

    originals: dict[int, str] = field(default_factory=dict)
    once: Once = Once(())

    @classmethod
    def of(cls, tokeniser: Tokeniser, source: str) -> SourcePlaceholders:
        """The placeholders of a source; none if the tokeniser has no ids for them.

        Conversions and braces that take their arguments in order keep their order, so that each takes the argument that
        it had in the source. Tags stay nested. A text has the signs %, { and } outside of placeholders only if the
        source has them there.
        """
        if not tokeniser.protects:
            return cls()
        placeholders = tokeniser.placeholders(source)
        ids = tokeniser.placeholder_ids(placeholders)
        originals: dict[int, str] = {}
        after: dict[int, int] = {}
        last: dict[str, int] = {}  # the last one in order, of % and of {
        for placeholder, i in zip(placeholders, ids, strict=True):
            if i is None:
                continue
            originals[i] = placeholder.text
            if placeholder.in_order:
                mark = placeholder.argument[0]
                if mark in last:
                    after[i] = last[mark]
                last[mark] = i

        closes: dict[int, int] = {}
        for closing, opening in code_pairs(placeholders).items():
            closing_id = ids[closing]
            opening_id = ids[opening]
            if closing_id is not None and opening_id is not None:
                closes[closing_id] = opening_id
        between = tokeniser.reads(source)
        banned = []
        for mark in MARKS:
            if mark not in between:
                banned += tokeniser.ids_with(mark)
        return cls(originals, Once(tuple(originals), after, closes, tuple(banned)))
