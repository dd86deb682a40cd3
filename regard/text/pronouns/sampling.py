"""Drawing derivations at random; every weight of the draw stands in this file."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from random import Random
from typing import TypeVar

from regard.errors import ArgumentError
from regard.text.pronouns.adjectives import ATTRIBUTES, Drawback, telling_drawbacks
from regard.text.pronouns.division import Split, split_of_pair
from regard.text.pronouns.frames import FRAMES, Frame
from regard.text.pronouns.links import Link
from regard.text.pronouns.nouns import NOUNS, Noun
from regard.text.pronouns.sentences import Degree, Derivation
from regard.text.pronouns.times import TIMES


@dataclass(frozen=True, kw_only=True)
class Weights:
    """How often each free choice is made; all are probabilities.

    Args:
        same_gender: both nouns share a gender; in training only, elsewhere they never do.
        attribute: a noun carries an attribute, for each noun.
        time: a time opens the sentence.
        link_first: the subordinate clause opens the sentence, where no time does.
        no_subject: a negated sentence says "no animal" instead of "not", where the subject comes first.
        contracted: "did not" is written "didn't".

    Raises:
        ArgumentError: for a value outside 0 to 1.
    """

    same_gender: float = 0.05
    attribute: float = 0.12
    time: float = 0.1
    link_first: float = 0.1
    no_subject: float = 0.08
    contracted: float = 0.4

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 <= value <= 1:
                raise ArgumentError(f"the weight {name!r} is {value}, but a probability lies between 0 and 1")


WEIGHTS = Weights()
Choice = TypeVar("Choice")

# "Too" explains why not; it cannot be conceded. What has no degrees can at most go on.
_DEGREES_OF_A_REASON: dict[Degree, float] = {"too": 0.6, "": 0.25, "very": 0.15}
_DEGREES_OF_A_CONCESSION: dict[Degree, float] = {"very": 0.5, "": 0.5}
_DEGREES_OF_AN_ABSOLUTE: dict[Degree, float] = {"": 0.7, "still": 0.3}


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A frame, the referent's role in it, and the partners of one class that may stand beside it."""

    frame: Frame
    refers_to_subject: bool
    partners: tuple[Noun, ...]


def deal_referents(random: Random) -> Iterator[Noun]:
    """Deal all nouns without end, shuffled anew each round, so that every noun is meant equally often."""
    while True:
        deck = list(NOUNS)
        random.shuffle(deck)
        yield from deck


def draw(split: Split, referent: Noun, random: Random, weights: Weights) -> Derivation | None:
    """Draw a sentence in which *it* means the given noun.

    Args:
        split: the split whose noun pairs may be used.
        referent: what *it* means.
        random: the generator to draw from.
        weights: the probabilities of the free choices.

    Returns:
        The derivation, or None if the split has no partner for this noun.
    """
    same_gender = split == "train" and random.random() < weights.same_gender
    choices = openings(split, referent, same_gender)
    if not choices:
        return None
    opening = _weighted(choices, (choice.frame.weight for choice in choices), random)
    partner = random.choice(opening.partners)
    drawback = random.choice(telling_drawbacks(referent.sense, partner.sense))
    links = opening.frame.links
    link = _weighted(links, (link.weight for link in links), random)
    allowed = degrees(drawback, link)
    is_negated = opening.frame.is_negated(link)
    times = [time for time in TIMES if is_negated or not time.is_span]
    time = random.choice(times) if random.random() < weights.time else None
    link_first = time is None and link.relation != "obstacle" and random.random() < weights.link_first
    subject_has_no = is_negated and not link_first and random.random() < weights.no_subject
    contracted = is_negated and not subject_has_no and random.random() < weights.contracted
    return Derivation(
        frame=opening.frame,
        subject=referent if opening.refers_to_subject else partner,
        object=partner if opening.refers_to_subject else referent,
        refers_to_subject=opening.refers_to_subject,
        drawback=drawback,
        degree=_weighted(list(allowed), allowed.values(), random),
        link=link,
        link_first=link_first,
        time=time,
        subject_attribute=random.choice(ATTRIBUTES) if random.random() < weights.attribute else None,
        object_attribute=random.choice(ATTRIBUTES) if random.random() < weights.attribute else None,
        subject_has_no=subject_has_no,
        apostrophe="'" if contracted else "",
    )


def degrees(drawback: Drawback, link: Link) -> dict[Degree, float]:
    """The degree words that may stand before a drawback after a link, with their weights."""
    if not drawback.gradable:
        return _DEGREES_OF_AN_ABSOLUTE
    return _DEGREES_OF_A_CONCESSION if link.relation == "concession" else _DEGREES_OF_A_REASON


@cache
def openings(split: Split, referent: Noun, same_gender: bool) -> tuple[Opening, ...]:
    """Every frame, role and class of partner that the referent can have within one split."""
    found = []
    for frame in FRAMES:
        for subject, object_ in frame.class_pairs:
            if referent.sense not in (subject, object_):
                continue
            refers_to_subject = referent.sense == subject
            partners = tuple(
                noun
                for noun in NOUNS
                if noun.sense == (object_ if refers_to_subject else subject)
                and (noun.gender == referent.gender) == same_gender
                and split_of_pair(referent, noun) == split
            )
            if partners:
                found.append(Opening(frame=frame, refers_to_subject=refers_to_subject, partners=partners))
    return tuple(found)


def _weighted(choices: Sequence[Choice], weights: Iterable[float], random: Random) -> Choice:
    return random.choices(choices, list(weights))[0]
