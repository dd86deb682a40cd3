"""The one record of translation data: a sentence and its translation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """A source sentence and the target sentence that translates it.

    >>> Pair("It was tired.", "Es war müde.").target
    'Es war müde.'
    """

    source: str
    target: str
