"""The conjunctions that join a drawback to what was done in spite of it, or not done for it."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Link:
    """A conjunction before "it was ...": a reason, a concession, or an obstacle ("but").

    After an obstacle the German verb stays second ("aber es war müde"), else it goes last ("weil es müde war").
    """

    english: str
    german: str
    relation: Literal["reason", "concession", "obstacle"]
    weight: float = 1.0


BECAUSE = Link(english="because", german="weil", relation="reason", weight=3.0)
SINCE = Link(english="since", german="da", relation="reason")
ALTHOUGH = Link(english="although", german="obwohl", relation="concession")
BUT = Link(english="but", german="aber", relation="obstacle")
LINKS = (BECAUSE, SINCE, ALTHOUGH, BUT)
