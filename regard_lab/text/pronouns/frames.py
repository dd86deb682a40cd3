"""Sentence frames in both languages, the conjunctions that join their clauses, and the times that open them."""

from dataclasses import dataclass
from itertools import product
from typing import Literal

from regard_lab.text.pronouns.lexicon import Sense


@dataclass(frozen=True, kw_only=True)
class Time:
    """A time at the beginning of a sentence; a span ("for two weeks") is used with negated clauses only."""

    english: str
    german: str
    is_span: bool = False


_NUMBERS = {
    "two": "zwei",
    "three": "drei",
    "four": "vier",
    "five": "fünf",
    "six": "sechs",
    "seven": "sieben",
    "eight": "acht",
    "nine": "neun",
    "ten": "zehn",
}

TIMES: tuple[Time, ...] = (
    Time(english="yesterday", german="gestern"),
    Time(english="on Monday", german="am Montag"),
    Time(english="on Friday", german="am Freitag"),
    *(Time(english=f"at {number} o'clock", german=f"um {zahl} Uhr") for number, zahl in _NUMBERS.items()),
    *(Time(english=f"after {number} days", german=f"nach {zahl} Tagen") for number, zahl in _NUMBERS.items()),
    *(
        Time(english=f"for {number} weeks", german=f"{zahl} Wochen lang", is_span=True)
        for number, zahl in _NUMBERS.items()
    ),
)


@dataclass(frozen=True, kw_only=True)
class Link:
    """A conjunction before "it was ...": a reason, a concession, or an obstacle ("but").

    After an obstacle the German verb is second ("aber es war müde"), otherwise last ("weil es müde war").
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


Case = Literal["nominative", "accusative", "dative"]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A main clause with a subject and an object, in both languages.

    `plain` and `negated` are the English between the two nouns. The German begins with its finite verb; {object} is the
    second noun with its article, {not} the place of "nicht". A reason explains the negated clause, unless
    `reason_negated` is False ("avoided the bed because it was wobbly").
    """

    plain: str
    negated: str
    german: str
    case: Case
    preposition: str = ""
    subjects: tuple[Sense, ...]
    objects: tuple[Sense, ...]
    links: tuple[Link, ...] = (BECAUSE, SINCE, ALTHOUGH)
    reason_negated: bool = True
    weight: float = 1.0

    @property
    def name(self) -> str:
        """The name of the frame, its plain English verb: "crossed", "was put on"."""
        return self.plain

    @property
    def class_pairs(self) -> tuple[tuple[Sense, Sense], ...]:
        """The pairs of classes for subject and object; the two always differ."""
        return tuple((first, second) for first, second in product(self.subjects, self.objects) if first != second)

    def is_negated(self, link: Link) -> bool:
        """Whether the main clause is negated when this link joins the drawback."""
        return link.relation != "obstacle" and self.reason_negated == (link.relation == "reason")


_MOVERS: tuple[Sense, ...] = ("animal", "vehicle")
_SMALL_THINGS: tuple[Sense, ...] = ("food", "text", "garment", "tool")

FRAMES: tuple[Frame, ...] = (
    Frame(
        plain="crossed",
        negated="did not cross",
        german="überquerte {object} {not}",
        case="accusative",
        subjects=_MOVERS,
        objects=("road",),
        weight=2.0,
    ),
    Frame(
        plain="was crossed by",
        negated="was not crossed by",
        german="wurde {object} {not} überquert",
        case="dative",
        preposition="von",
        subjects=("road",),
        objects=_MOVERS,
        weight=1.5,
    ),
    Frame(
        plain="wanted to cross",
        negated="did not want to cross",
        german="wollte {object} {not} überqueren",
        case="accusative",
        subjects=("animal",),
        objects=("road",),
        links=LINKS,
        weight=2.5,
    ),
    Frame(
        plain="waited in front of",
        negated="did not wait in front of",
        german="wartete {not} {object}",
        case="dative",
        preposition="vor",
        subjects=_MOVERS,
        objects=("road", "building"),
        reason_negated=False,
        weight=0.5,
    ),
    Frame(
        plain="stopped in front of",
        negated="did not stop in front of",
        german="hielt {not} {object}",
        case="dative",
        preposition="vor",
        subjects=("vehicle",),
        objects=("building",),
        weight=2.0,
    ),
    Frame(
        plain="entered",
        negated="did not enter",
        german="betrat {object} {not}",
        case="accusative",
        subjects=("animal",),
        objects=("building",),
        weight=1.5,
    ),
    Frame(
        plain="was entered by",
        negated="was not entered by",
        german="wurde {object} {not} betreten",
        case="dative",
        preposition="von",
        subjects=("building",),
        objects=("animal",),
        weight=1.5,
    ),
    Frame(
        plain="avoided",
        negated="did not avoid",
        german="mied {object} {not}",
        case="accusative",
        subjects=("animal",),
        objects=("vehicle", "furniture", "container", "device"),
        reason_negated=False,
        weight=0.4,
    ),
    Frame(
        plain="touched",
        negated="did not touch",
        german="berührte {object} {not}",
        case="accusative",
        subjects=("animal",),
        objects=("container", "device", "text", "garment", "tool"),
        weight=0.3,
    ),
    Frame(
        plain="was touched by",
        negated="was not touched by",
        german="wurde {object} {not} berührt",
        case="dative",
        preposition="von",
        subjects=("container", "device", "text", "garment", "tool"),
        objects=("animal",),
        weight=0.3,
    ),
    Frame(
        plain="ate",
        negated="did not eat",
        german="fraß {object} {not}",
        case="accusative",
        subjects=("animal",),
        objects=("food",),
        weight=1.5,
    ),
    Frame(
        plain="wanted to eat",
        negated="did not want to eat",
        german="wollte {object} {not} fressen",
        case="accusative",
        subjects=("animal",),
        objects=("food",),
        links=LINKS,
        weight=1.5,
    ),
    Frame(
        plain="was eaten by",
        negated="was not eaten by",
        german="wurde {object} {not} gefressen",
        case="dative",
        preposition="von",
        subjects=("food",),
        objects=("animal",),
        weight=1.5,
    ),
    Frame(
        plain="jumped onto",
        negated="did not jump onto",
        german="sprang {not} {object}",
        case="accusative",
        preposition="auf",
        subjects=("animal",),
        objects=("furniture", "vehicle"),
        weight=0.7,
    ),
    Frame(
        plain="slept under",
        negated="did not sleep under",
        german="schlief {not} {object}",
        case="dative",
        preposition="unter",
        subjects=("animal",),
        objects=("furniture", "vehicle"),
        weight=0.7,
    ),
    Frame(
        plain="was put on",
        negated="was not put on",
        german="wurde {not} {object} gelegt",
        case="accusative",
        preposition="auf",
        subjects=_SMALL_THINGS,
        objects=("furniture",),
    ),
    Frame(
        plain="was placed next to",
        negated="was not placed next to",
        german="wurde {not} {object} gestellt",
        case="accusative",
        preposition="neben",
        subjects=("device", "container"),
        objects=("furniture",),
        weight=1.5,
    ),
    Frame(
        plain="was packed into",
        negated="was not packed into",
        german="wurde {not} {object} gepackt",
        case="accusative",
        preposition="in",
        subjects=_SMALL_THINGS,
        objects=("container",),
    ),
    Frame(
        plain="stayed in",
        negated="did not stay in",
        german="blieb {not} {object}",
        case="dative",
        preposition="in",
        subjects=_SMALL_THINGS,
        objects=("container",),
        reason_negated=False,
    ),
    Frame(
        plain="was brought into",
        negated="was not brought into",
        german="wurde {not} {object} gebracht",
        case="accusative",
        preposition="in",
        subjects=(*_SMALL_THINGS, "device", "furniture", "container"),
        objects=("building",),
    ),
    Frame(
        plain="was loaded onto",
        negated="was not loaded onto",
        german="wurde {not} {object} geladen",
        case="accusative",
        preposition="auf",
        subjects=("device", "furniture", "container"),
        objects=("vehicle",),
        weight=0.6,
    ),
    Frame(
        plain="carried",
        negated="did not carry",
        german="transportierte {object} {not}",
        case="accusative",
        subjects=("vehicle",),
        objects=("food", "device", "furniture", "container"),
        weight=0.5,
    ),
    Frame(
        plain="was carried by",
        negated="was not carried by",
        german="wurde {object} {not} transportiert",
        case="dative",
        preposition="von",
        subjects=("food", "device", "furniture", "container"),
        objects=("vehicle",),
        weight=0.5,
    ),
    Frame(
        plain="was sold with",
        negated="was not sold with",
        german="wurde {not} {object} verkauft",
        case="dative",
        preposition="mit",
        subjects=(*_SMALL_THINGS, "device"),
        objects=(*_SMALL_THINGS, "device"),
        weight=0.4,
    ),
    Frame(
        plain="was exchanged for",
        negated="was not exchanged for",
        german="wurde {not} {object} getauscht",
        case="accusative",
        preposition="gegen",
        subjects=("text", "garment", "tool", "device"),
        objects=("text", "garment", "tool", "device"),
        weight=0.8,
    ),
)
