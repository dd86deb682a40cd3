"""Sentence frames in both languages, the conjunctions that join their clauses, and the times that open them."""

from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args

from regard_lab.text.pronouns.lexicon import SENSES, Sense


@dataclass(frozen=True, kw_only=True)
class Time:
    """A time at the beginning of a sentence; a span ("for two weeks") is used with negated clauses only."""

    english: str
    german: str
    is_span: bool = False


_ENGLISH = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_GERMAN = ("zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn")
_NUMBERS = dict(zip(_ENGLISH, _GERMAN, strict=True))

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
_CASES: dict[str, Case] = {case: case for case in get_args(Case)}


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


_MOVERS = "animal vehicle"
_SMALL = "food text garment tool"


def _frame(
    plain: str, negated: str, german: str, governed: str, subjects: str, objects: str, weight: float = 1, **options: Any
) -> Frame:
    """A frame from words: `governed` is the case of the object, with the preposition before it if there is one."""
    preposition, _, case = governed.rpartition(" ")
    first, second = (tuple(sense for word in classes.split() for sense in SENSES if sense == word)
                     for classes in (subjects, objects))  # fmt: skip
    return Frame(
        plain=plain, negated=negated, german=german, case=_CASES[case], preposition=preposition, subjects=first,
        objects=second, weight=weight, **options,
    )  # fmt: skip


def _active(plain: str, infinitive: str, *words: Any, **options: Any) -> Frame:
    return _frame(plain, f"did not {infinitive}", *words, **options)


def _passive(verb: str, *words: Any, **options: Any) -> Frame:
    return _frame(f"was {verb}", f"was not {verb}", *words, **options)


FRAMES: tuple[Frame, ...] = (
    _active("crossed", "cross", "überquerte {object} {not}", "accusative", _MOVERS, "road", 2.0),
    _passive("crossed by", "wurde {object} {not} überquert", "von dative", "road", _MOVERS, 1.5),
    _active(
        "wanted to cross",
        "want to cross",
        "wollte {object} {not} überqueren",
        "accusative",
        "animal",
        "road",
        2.5,
        links=LINKS,
    ),
    _active(
        "waited in front of",
        "wait in front of",
        "wartete {not} {object}",
        "vor dative",
        _MOVERS,
        "road building",
        0.5,
        reason_negated=False,
    ),
    _active(
        "stopped in front of", "stop in front of", "hielt {not} {object}", "vor dative", "vehicle", "building", 2.0
    ),
    _active("entered", "enter", "betrat {object} {not}", "accusative", "animal", "building", 1.5),
    _passive("entered by", "wurde {object} {not} betreten", "von dative", "building", "animal", 1.5),
    _active(
        "avoided",
        "avoid",
        "mied {object} {not}",
        "accusative",
        "animal",
        "vehicle furniture container device",
        0.4,
        reason_negated=False,
    ),
    _active(
        "touched", "touch", "berührte {object} {not}", "accusative", "animal", "container device text garment tool", 0.3
    ),
    _passive(
        "touched by", "wurde {object} {not} berührt", "von dative", "container device text garment tool", "animal", 0.3
    ),
    _active("ate", "eat", "fraß {object} {not}", "accusative", "animal", "food", 1.5),
    _active(
        "wanted to eat",
        "want to eat",
        "wollte {object} {not} fressen",
        "accusative",
        "animal",
        "food",
        1.5,
        links=LINKS,
    ),
    _passive("eaten by", "wurde {object} {not} gefressen", "von dative", "food", "animal", 1.5),
    _active("jumped onto", "jump onto", "sprang {not} {object}", "auf accusative", "animal", "furniture vehicle", 0.7),
    _active("slept under", "sleep under", "schlief {not} {object}", "unter dative", "animal", "furniture vehicle", 0.7),
    _passive("put on", "wurde {not} {object} gelegt", "auf accusative", _SMALL, "furniture"),
    _passive(
        "placed next to", "wurde {not} {object} gestellt", "neben accusative", "device container", "furniture", 1.5
    ),
    _passive("packed into", "wurde {not} {object} gepackt", "in accusative", _SMALL, "container"),
    _active("stayed in", "stay in", "blieb {not} {object}", "in dative", _SMALL, "container", reason_negated=False),
    _passive(
        "brought into",
        "wurde {not} {object} gebracht",
        "in accusative",
        f"{_SMALL} device furniture container",
        "building",
    ),
    _passive(
        "loaded onto", "wurde {not} {object} geladen", "auf accusative", "device furniture container", "vehicle", 0.6
    ),
    _active(
        "carried",
        "carry",
        "transportierte {object} {not}",
        "accusative",
        "vehicle",
        "food device furniture container",
        0.5,
    ),
    _passive(
        "carried by",
        "wurde {object} {not} transportiert",
        "von dative",
        "food device furniture container",
        "vehicle",
        0.5,
    ),
    _passive("sold with", "wurde {not} {object} verkauft", "mit dative", f"{_SMALL} device", f"{_SMALL} device", 0.4),
    _passive(
        "exchanged for",
        "wurde {not} {object} getauscht",
        "gegen accusative",
        "text garment tool device",
        "text garment tool device",
        0.8,
    ),
)
