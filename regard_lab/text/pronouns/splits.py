"""Drawing sentences at random, and the training, validation and test splits."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
from random import Random
from typing import Literal, TypeVar, get_args

from regard.arguments import one_of, real
from regard.errors import ArgumentError
from regard_lab.text.pronouns.frames import FRAMES, TIMES, Conjunction, Frame
from regard_lab.text.pronouns.lexicon import (
    ATTRIBUTES,
    NOUNS,
    Attribute,
    Drawback,
    Noun,
    Sense,
    telling_drawbacks,
)
from regard_lab.text.pronouns.sentences import Degree, Derivation, PronounSentence, write

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

VALID_SHARE = 0.04
TEST_SHARE = 0.06

# Readers will try the articles' own sentences, so their noun pair is never in training.
_ARTICLE_PAIR = ["animal", "street"]


@cache
def split_of_pair(first: Noun, second: Noun) -> Split:
    """The split of all sentences about two nouns, in either order.

    Returns:
        "train" for about 90 % of all pairs, "valid" for 4 %, "test" for 6 %, the same on every machine.

    >>> from regard_lab.text.pronouns.lexicon import NOUN_BY_ENGLISH
    >>> split_of_pair(NOUN_BY_ENGLISH["street"], NOUN_BY_ENGLISH["animal"])
    'test'
    """
    names = sorted((first.english, second.english))
    if names == _ARTICLE_PAIR:
        return "test"
    digest = hashlib.sha256(f"pronouns {' '.join(names)}".encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    if share < TEST_SHARE:
        return "test"
    return "valid" if share < TEST_SHARE + VALID_SHARE else "train"


@dataclass(frozen=True, kw_only=True)
class ChoiceProbabilities:
    """Probabilities of the free choices of a sentence.

    Args:
        same_gender: both nouns have the same gender; in training only, in other splits they never do.
        attribute: a noun has an attribute, for each noun.
        time: the sentence begins with a time.
        link_first: the sentence begins with the subordinate clause, if it has no time.
        no_subject: a negated sentence has "no animal" instead of "not", if the subject comes first.
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
            real(f"the weight {name!r}", value, 0, 1, needs="a probability, from 0 to 1")


WEIGHTS = ChoiceProbabilities()
Choice = TypeVar("Choice")

# "Too" gives a reason and does not fit a concession. Adjectives without degrees can only take "still".
_DEGREES_OF_A_REASON: dict[Degree, float] = {"too": 0.6, "": 0.25, "very": 0.15}
_DEGREES_OF_A_CONCESSION: dict[Degree, float] = {"very": 0.5, "": 0.5}
_DEGREES_OF_AN_ABSOLUTE: dict[Degree, float] = {"": 0.7, "still": 0.3}


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A frame, the role of the referent in it, and the possible other nouns of one class."""

    frame: Frame
    refers_to_subject: bool
    partners: tuple[Noun, ...]


def draw(
    split: Split, referent: Noun, random: Random, weights: ChoiceProbabilities
) -> Derivation | None:
    """Draw a sentence in which *it* refers to the given noun; None if the split has no other noun for this one."""
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
    # No number is drawn for a choice that is not free.
    link_first = (
        time is None and link.relation != "obstacle" and random.random() < weights.link_first
    )
    subject_has_no = is_negated and not link_first and random.random() < weights.no_subject
    is_contracted = is_negated and not subject_has_no and random.random() < weights.contracted
    degree = _weighted(list(allowed), allowed.values(), random)
    subject_attribute = _draw_attribute(weights, random)
    object_attribute = _draw_attribute(weights, random)
    return Derivation(
        frame=opening.frame,
        subject=referent if opening.refers_to_subject else partner,
        object=partner if opening.refers_to_subject else referent,
        refers_to_subject=opening.refers_to_subject,
        drawback=drawback,
        degree=degree,
        link=link,
        link_first=link_first,
        time=time,
        subject_attribute=subject_attribute,
        object_attribute=object_attribute,
        subject_has_no=subject_has_no,
        apostrophe="'" if is_contracted else "",
    )


def _draw_attribute(weights: ChoiceProbabilities, random: Random) -> Attribute | None:
    if random.random() < weights.attribute:
        return random.choice(ATTRIBUTES)
    return None


def degrees(drawback: Drawback, link: Conjunction) -> dict[Degree, float]:
    """The degree words that fit a drawback and a link, with their weights."""
    if not drawback.gradable:
        return _DEGREES_OF_AN_ABSOLUTE
    if link.relation == "concession":
        return _DEGREES_OF_A_CONCESSION
    return _DEGREES_OF_A_REASON


@cache
def openings(split: Split, referent: Noun, same_gender: bool) -> tuple[Opening, ...]:
    """All frames, roles and classes of the other noun for a referent within one split."""
    choices = []
    for frame in FRAMES:
        for subject, object_ in frame.class_pairs:
            if referent.sense not in (subject, object_):
                continue
            refers_to_subject = referent.sense == subject
            sense = object_ if refers_to_subject else subject
            partners = _partners(split, referent, sense, same_gender)
            if partners:
                opening = Opening(
                    frame=frame, refers_to_subject=refers_to_subject, partners=partners
                )
                choices.append(opening)
    return tuple(choices)


@cache
def _partners(split: Split, referent: Noun, sense: Sense, same_gender: bool) -> tuple[Noun, ...]:
    """The nouns of a class that stand beside the referent in this split."""
    partners = []
    for noun in NOUNS:
        is_alike = noun.gender == referent.gender
        if noun.sense != sense or is_alike != same_gender:
            continue
        if split_of_pair(referent, noun) == split:
            partners.append(noun)
    return tuple(partners)


def _weighted(choices: Sequence[Choice], weights: Iterable[float], random: Random) -> Choice:
    return random.choices(choices, list(weights))[0]


# Up to these counts, fewer than one draw in twenty repeats a sentence of the valid and test splits.
LARGEST_COUNT: dict[Split, int] = {"train": 500_000, "valid": 20_000, "test": 20_000}


def make_split(
    split: Split, count: int, seed: int = 0, *, weights: ChoiceProbabilities = WEIGHTS
) -> list[PronounSentence]:
    """Generate distinct sentences of one split; a longer list begins with a shorter one.

    Args:
        split: "train", "valid" or "test".
        count: number of sentences, from 0 to `LARGEST_COUNT[split]`.
        seed: another seed gives other sentences about the same noun pairs.

    Returns:
        The sentences, with distinct sources and noun pairs of this split only. Each noun is the referent about equally
        often.

    Raises:
        ArgumentError: for an unknown split, or a count the split cannot fill.

    >>> sentence = make_split("test", 1)[0]
    >>> sentence.target.split()[sentence.target_pronoun_index] == sentence.pronoun
    True
    """
    one_of("split", split, SPLITS)
    _check_count("sentences", count, split)
    drawn = _distinct_derivations(split, Random(f"{split} {seed}"), weights)
    return [write(derivation) for derivation in islice(drawn, count)]


def make_contrast_pairs(count: int, seed: int = 0) -> list[tuple[PronounSentence, PronounSentence]]:
    """Generate pairs of test sentences that differ in one English word, which changes the referent.

    Args:
        count: number of pairs, from 0 to `LARGEST_COUNT["test"]`.
        seed: another seed gives other pairs.

    Returns:
        Pairs whose sources differ in the final adjective only and whose pronouns differ.

    Raises:
        ArgumentError: for a count that the test split cannot fill.

    >>> before, after = make_contrast_pairs(1)[0]
    >>> len(set(before.source.split()) ^ set(after.source.split())), before.pronoun != after.pronoun
    (2, True)
    """
    _check_count("contrast pairs", count, "test")
    random = Random(f"contrast {seed}")
    pairs: list[tuple[PronounSentence, PronounSentence]] = []
    seen: set[str] = set()
    for derivation in _distinct_derivations("test", random):
        if len(pairs) == count:
            break
        moved = with_referent_moved(derivation, random)
        if moved is None:
            continue
        first = write(derivation)
        second = write(moved)
        if first.source not in seen and second.source not in seen:
            seen |= {first.source, second.source}
            pairs.append((first, second))
    return pairs


def make_twins(count: int, seed: int = 0) -> list[tuple[PronounSentence, ...]]:
    """Generate training sentences, each with a twin that differs in the final adjective and so in the referent.

    A batch with both shows what the adjective decides, since everything else is the same.

    Args:
        count: number of sentences in all, from 0 to `LARGEST_COUNT["train"]`.
        seed: another seed gives other sentences about the same noun pairs.

    Returns:
        Pairs of twins, with distinct sources and noun pairs of the training split only; a sentence for which no
        adjective fits the other noun is alone.

    Raises:
        ArgumentError: for a count that the training split cannot fill.

    >>> first, twin = make_twins(2)[0]
    >>> len(set(first.source.split()) ^ set(twin.source.split()))
    2
    """
    _check_count("sentences", count, "train")
    random = Random(f"twins {seed}")
    groups: list[tuple[PronounSentence, ...]] = []
    seen: set[str] = set()
    if count == 0:
        return groups
    for derivation in _distinct_derivations("train", random):
        moved = with_referent_moved(derivation, random)
        sentences = [write(derivation)]
        if moved is not None:
            sentences.append(write(moved))
        new = [sentence for sentence in sentences if sentence.source not in seen]
        group = tuple(new[: count - len(seen)])
        if group:
            groups.append(group)
            seen.update(sentence.source for sentence in group)
        if len(seen) == count:
            break
    return groups


def _distinct_derivations(
    split: Split, random: Random, weights: ChoiceProbabilities = WEIGHTS
) -> Iterator[Derivation]:
    """An endless stream of distinct derivations of a split."""
    seen: set[Derivation] = set()
    while True:
        deck = list(NOUNS)  # in endless rounds, so that each is equally often the referent
        random.shuffle(deck)
        for referent in deck:
            derivation = draw(split, referent, random, weights)
            if derivation is not None and derivation not in seen:
                seen.add(derivation)
                yield derivation


def with_referent_moved(derivation: Derivation, random: Random) -> Derivation | None:
    """The sentence with a drawback of the other noun and the same degree; None if none fits."""
    drawbacks = []
    for drawback in telling_drawbacks(derivation.other.sense, derivation.referent.sense):
        if derivation.degree in degrees(drawback, derivation.link):
            drawbacks.append(drawback)
    if not drawbacks:
        return None
    return replace(
        derivation,
        drawback=random.choice(drawbacks),
        refers_to_subject=not derivation.refers_to_subject,
    )


def _check_count(what: str, count: int, split: Split) -> None:
    if not 0 <= count <= LARGEST_COUNT[split]:
        raise ArgumentError(
            f"{count} {what} of {split!r}: give a count from 0 to {LARGEST_COUNT[split]}"
        )
