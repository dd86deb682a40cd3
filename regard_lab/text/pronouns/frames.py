"""Sentence frames in both languages, the conjunctions that join their clauses, and the times that open them."""

from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

from regard_lab.text.pronouns.lexicon import SENSES, Sense


@dataclass(frozen=True, kw_only=True)
class Time:
    """A time at the beginning of a sentence; a span ("for two weeks") is used with negated clauses only."""

    english: str
    german: str
    is_span: bool = False


_ENGLISH = "two three four five six seven eight nine ten"
_GERMAN = "zwei drei vier fünf sechs sieben acht neun zehn"
_NUMBERS = dict(zip(_ENGLISH.split(), _GERMAN.split(), strict=True))


def _counted_times(english: str, german: str, is_span: bool = False) -> list[Time]:
    """A time with each number in place of {number}."""
    times = []
    for number, zahl in _NUMBERS.items():
        counted_in_english = english.format(number=number)
        counted_in_german = german.format(number=zahl)
        times.append(Time(english=counted_in_english, german=counted_in_german, is_span=is_span))
    return times


TIMES: tuple[Time, ...] = (
    Time(english="yesterday", german="gestern"),
    Time(english="on Monday", german="am Montag"),
    Time(english="on Friday", german="am Freitag"),
    *_counted_times("at {number} o'clock", "um {number} Uhr"),
    *_counted_times("after {number} days", "nach {number} Tagen"),
    *_counted_times("for {number} weeks", "{number} Wochen lang", is_span=True),
)


@dataclass(frozen=True, kw_only=True)
class Conjunction:
    """A conjunction before "it was ...": a reason, a concession, or an obstacle ("but").

    After an obstacle the German verb is second ("aber es war müde"), otherwise last ("weil es müde war").
    """

    english: str
    german: str
    relation: Literal["reason", "concession", "obstacle"]
    weight: float = 1.0


BECAUSE = Conjunction(english="because", german="weil", relation="reason", weight=3.0)
SINCE = Conjunction(english="since", german="da", relation="reason")
ALTHOUGH = Conjunction(english="although", german="obwohl", relation="concession")
BUT = Conjunction(english="but", german="aber", relation="obstacle")
LINKS = (BECAUSE, SINCE, ALTHOUGH, BUT)
GERMAN_CONJUNCTIONS = frozenset(link.german for link in LINKS)


GrammaticalCase = Literal["nominative", "accusative", "dative"]
_CASES: dict[str, GrammaticalCase] = {case: case for case in get_args(GrammaticalCase)}
_SENSES: dict[str, Sense] = {sense: sense for sense in SENSES}


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
    case: GrammaticalCase
    preposition: str = ""
    subjects: tuple[Sense, ...]
    objects: tuple[Sense, ...]
    links: tuple[Conjunction, ...] = LINKS[:-1]  # without BUT
    reason_negated: bool = True
    weight: float = 1.0

    @property
    def name(self) -> str:
        """The name of the frame, its plain English verb: "crossed", "was put on"."""
        return self.plain

    @property
    def class_pairs(self) -> tuple[tuple[Sense, Sense], ...]:
        """The pairs of classes for subject and object; the two always differ."""
        pairs = product(self.subjects, self.objects)
        return tuple((subject, object_) for subject, object_ in pairs if subject != object_)

    def is_negated(self, link: Conjunction) -> bool:
        """Whether the main clause is negated when this link joins the drawback."""
        return link.relation != "obstacle" and self.reason_negated == (link.relation == "reason")


# Each frame: plain English | infinitive of an active verb | German | case of the object, after its preposition |
# classes of the subject | classes of the object | weight, then "but" if "but it was ..." may follow, and "affirmed" if
# a reason does not negate the clause.
_TABLE = """
crossed | cross | überquerte {object} {not} | accusative | animal vehicle | road | 2
was crossed by | | wurde {object} {not} überquert | von dative | road | animal vehicle | 1.5
wanted to cross | want to cross | wollte {object} {not} überqueren | accusative | animal | road | 2.5 but
waited in front of | wait in front of | wartete {not} {object} | vor dative | animal vehicle | road building
  | 0.5 affirmed
stopped in front of | stop in front of | hielt {not} {object} | vor dative | vehicle | building | 2
entered | enter | betrat {object} {not} | accusative | animal | building | 1.5
was entered by | | wurde {object} {not} betreten | von dative | building | animal | 1.5
avoided | avoid | mied {object} {not} | accusative | animal | vehicle furniture container device | 0.4 affirmed
touched | touch | berührte {object} {not} | accusative | animal | container device text garment tool | 0.3
was touched by | | wurde {object} {not} berührt | von dative | container device text garment tool | animal | 0.3
ate | eat | fraß {object} {not} | accusative | animal | food | 1.5
wanted to eat | want to eat | wollte {object} {not} fressen | accusative | animal | food | 1.5 but
was eaten by | | wurde {object} {not} gefressen | von dative | food | animal | 1.5
jumped onto | jump onto | sprang {not} {object} | auf accusative | animal | furniture vehicle | 0.7
slept under | sleep under | schlief {not} {object} | unter dative | animal | furniture vehicle | 0.7
was put on | | wurde {not} {object} gelegt | auf accusative | food text garment tool | furniture | 1
was placed next to | | wurde {not} {object} gestellt | neben accusative | device container | furniture | 1.5
was packed into | | wurde {not} {object} gepackt | in accusative | food text garment tool | container | 1
stayed in | stay in | blieb {not} {object} | in dative | food text garment tool | container | 1 affirmed
was brought into | | wurde {not} {object} gebracht | in accusative | food text garment tool device furniture container
  | building | 1
was loaded onto | | wurde {not} {object} geladen | auf accusative | device furniture container | vehicle | 0.6
carried | carry | transportierte {object} {not} | accusative | vehicle | food device furniture container | 0.5
was carried by | | wurde {object} {not} transportiert | von dative | food device furniture container | vehicle | 0.5
was sold with | | wurde {not} {object} verkauft | mit dative | food text garment tool device
  | food text garment tool device | 0.4
was exchanged for | | wurde {not} {object} getauscht | gegen accusative | text garment tool device
  | text garment tool device | 0.8
"""


def _frame(row: str) -> Frame:
    plain, infinitive, german, governed, subjects, objects, marks = map(str.strip, row.split("|"))
    preposition, _, case = governed.rpartition(" ")
    weight, *options = marks.split()
    return Frame(
        plain=plain,
        negated=f"did not {infinitive}" if infinitive else plain.replace("was ", "was not "),
        german=german,
        case=_CASES[case],
        preposition=preposition,
        subjects=_senses(subjects),
        objects=_senses(objects),
        reason_negated="affirmed" not in options,
        links=LINKS if "but" in options else LINKS[:-1],
        weight=float(weight),
    )


def _senses(words: str) -> tuple[Sense, ...]:
    return tuple(_SENSES[word] for word in words.split())


FRAMES: tuple[Frame, ...] = tuple(map(_frame, _TABLE.strip().replace("\n  ", " ").splitlines()))
