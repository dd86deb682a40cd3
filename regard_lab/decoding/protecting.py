"""Searches whose texts have the placeholders of their sources, a second one that repairs, and counts of those kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regard.arguments import count_of
from regard_lab.decoding.options import SearchOptions
from regard_lab.text import Tokeniser
from regard_lab.text.placeholders import (
    KINDS,
    Placeholder,
    differences,
    find_placeholders,
)
from regard_lab.text.source_placeholders import SourcePlaceholders
from regard_lab.text.vocabularies import SPECIALS

REPAIR_BEAM = 4  # hypotheses, at least, where a translation lacks placeholders
FRAGILE_KINDS = ("variable", "tag")  # whose loss breaks a program or a page


def protecting(
    options: SearchOptions, tokeniser: Tokeniser, rows: Sequence[SourcePlaceholders]
) -> SearchOptions:
    """The options of a search in which each batch row has its own placeholders, each at most once."""
    if not tokeniser.protects:
        return options
    vocabulary = tokeniser.vocabulary
    constraints = replace(
        options.constraints,
        reserved=range(len(SPECIALS), vocabulary.first_ordinary),
        once=tuple(row.once for row in rows),
    )
    return replace(options, constraints=constraints)


def repairing(options: SearchOptions, rows: Sequence[int], limits: Sequence[int]) -> SearchOptions:
    """The options of a second search for some batch rows, in which each text has all placeholders of its source.

    `limits` are the most ids of each of these texts.
    """
    constraints = options.constraints
    prefixes = constraints.prefixes
    once = []
    for row, limit in zip(rows, limits, strict=True):
        of_row = constraints.once[row]
        once.append(replace(of_row, latest=max(0, limit - len(of_row.ids))))
    constraints = replace(
        constraints,
        once=tuple(once),
        prefixes=tuple(prefixes[row] for row in rows) if prefixes else (),
        complete=True,
    )
    beam = max(options.beam, REPAIR_BEAM)
    return replace(options, beam=beam, count=1, constraints=constraints)


class PlaceholderCounts:
    """Counts translations whose source has placeholders, and those that have each of them once."""

    def __init__(self, texts: Sequence[tuple[str, str]] = ()) -> None:
        self.texts = 0
        self.kept = 0
        self.by_kind = dict.fromkeys(KINDS, 0)  # sources that have some of the kind
        self.first: tuple[str, str] | None = None  # a source, and what its translation has wrong
        for source, translation in texts:
            self.add(source, translation)

    def add(self, source: str, translation: str) -> None:
        """Count a translation."""
        placeholders = find_placeholders(source)
        if not placeholders:
            return
        self.texts += 1
        for kind in {placeholder.kind for placeholder in placeholders}:
            self.by_kind[kind] += 1
        wrong = differences(source, translation)
        self.kept += not wrong
        if wrong and self.first is None:
            self.first = (source, wrong[0])

    def remark(self) -> str | None:
        """A sentence about those that differ; None if there are none.

        >>> print(PlaceholderCounts([("Copy {0}", "Kopiere"), ("{1}", "{1}")]).remark())
        1 of 2 translations does not have each placeholder of its source once; first of 'Copy {0}': '{0}' is missing
        """
        if self.first is None:
            return None
        source, wrong = self.first
        differing = self.texts - self.kept
        verb = "does" if differing == 1 else "do"
        return (
            f"{differing:,} of {count_of(self.texts, 'translations', ',')} {verb} not have each placeholder of its "
            f"source once; first of {source!r}: {wrong}"
        )


class UnprotectedPlaceholders:
    """Says once that a model was trained without protection, when a text has placeholders that break if they change."""

    def __init__(self, tokeniser: Tokeniser) -> None:
        self._is_silent = tokeniser.protects

    def remark(self, text: str) -> str | None:
        """A sentence about the first text with variables or tags; None on others.

        >>> remarks = UnprotectedPlaceholders(Tokeniser.train(["a bird"] * 2, 300))
        >>> print(remarks.remark("Copy {0}"))
        this model was trained without --protect: it translates placeholders such as '{0}' like words, and may lose them
        >>> remarks.remark("Copy {1}")
        """
        if self._is_silent:
            return None
        fragile = _fragile(find_placeholders(text))
        if not fragile:
            return None
        self._is_silent = True
        return (
            f"this model was trained without --protect: it translates placeholders such as {fragile[0].text!r} like "
            f"words, and may lose them"
        )


def _fragile(placeholders: Sequence[Placeholder]) -> list[Placeholder]:
    return [placeholder for placeholder in placeholders if placeholder.kind in FRAGILE_KINDS]
