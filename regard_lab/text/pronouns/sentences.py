"""Sentences: the choices behind each one, and how they are written in English and German."""

from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from regard.reprs import brief
from regard_lab.text.pronouns.frames import (
    BECAUSE,
    FRAMES,
    Conjunction,
    Frame,
    GrammaticalCase,
    Time,
)
from regard_lab.text.pronouns.lexicon import (
    DRAWBACK_BY_ENGLISH,
    NOUN_BY_ENGLISH,
    Attribute,
    Drawback,
    Gender,
    Noun,
)

Pronoun = Literal["es", "er", "sie"]

PRONOUN_OF_GENDER: dict[Gender, Pronoun] = {"neuter": "es", "masculine": "er", "feminine": "sie"}
PRONOUNS: tuple[Pronoun, ...] = tuple(PRONOUN_OF_GENDER.values())

_ARTICLE: dict[GrammaticalCase, dict[Gender, str]] = {
    "nominative": {"masculine": "der", "feminine": "die", "neuter": "das"},
    "accusative": {"masculine": "den", "feminine": "die", "neuter": "das"},
    "dative": {"masculine": "dem", "feminine": "der", "neuter": "dem"},
}
_ENDING_AFTER_ARTICLE: dict[GrammaticalCase, dict[Gender, str]] = {
    "nominative": {"masculine": "e", "feminine": "e", "neuter": "e"},
    "accusative": {"masculine": "en", "feminine": "e", "neuter": "e"},
    "dative": {"masculine": "en", "feminine": "en", "neuter": "en"},
}
_NO: dict[Gender, str] = {"masculine": "kein", "feminine": "keine", "neuter": "kein"}
_ENDING_AFTER_NO: dict[Gender, str] = {"masculine": "er", "feminine": "e", "neuter": "es"}
_CONTRACTED = {("in", "dem"): "im", ("in", "das"): "ins", ("von", "dem"): "vom"}


def noun_phrase(
    noun: Noun, case: GrammaticalCase, attribute: Attribute | None = None, preposition: str = ""
) -> str:
    """A noun with its definite article, an optional adjective, and a preposition that is contracted with the article.

    >>> from regard_lab.text.pronouns.lexicon import NOUN_BY_ENGLISH
    >>> noun_phrase(NOUN_BY_ENGLISH["bear"], "accusative", Attribute(english="old", stem="alt"))
    'den alten Bären'
    >>> noun_phrase(NOUN_BY_ENGLISH["suitcase"], "dative", preposition="in")
    'im Koffer'
    """
    article = _ARTICLE[case][noun.gender]
    opening = _CONTRACTED.get((preposition, article), f"{preposition} {article}".strip())
    described = f" {attribute.stem}{_ENDING_AFTER_ARTICLE[case][noun.gender]}" if attribute else ""
    return f"{opening}{described} {noun.german if case == 'nominative' else noun.oblique}"


def no_noun_phrase(noun: Noun, attribute: Attribute | None = None) -> str:
    """A noun with "kein" in the nominative, the only case in which the grammar negates a noun.

    >>> from regard_lab.text.pronouns.lexicon import NOUN_BY_ENGLISH
    >>> no_noun_phrase(NOUN_BY_ENGLISH["animal"], Attribute(english="old", stem="alt"))
    'kein altes Tier'
    """
    described = f" {attribute.stem}{_ENDING_AFTER_NO[noun.gender]}" if attribute else ""
    return f"{_NO[noun.gender]}{described} {noun.german}"


Degree = Literal["", "too", "very", "still"]


@brief
@dataclass(frozen=True, kw_only=True)
class Derivation:
    """All choices of one sentence; `write` turns them into text, `dataclasses.replace` varies them.

    `link_first` puts the subordinate clause first. `subject_has_no` negates with "no" instead of "not". `apostrophe` is
    the character of a contracted "not" ("didn't"), or empty for the full word.
    """

    frame: Frame
    subject: Noun
    object: Noun
    refers_to_subject: bool
    drawback: Drawback
    degree: Degree
    link: Conjunction
    link_first: bool = False
    time: Time | None = None
    subject_attribute: Attribute | None = None
    object_attribute: Attribute | None = None
    subject_has_no: bool = False
    apostrophe: Literal["", "'", "’"] = ""

    @property
    def referent(self) -> Noun:
        """The noun that *it* refers to."""
        return self.subject if self.refers_to_subject else self.object

    @property
    def other(self) -> Noun:
        """The noun that *it* does not refer to."""
        return self.object if self.refers_to_subject else self.subject

    @property
    def has_not(self) -> bool:
        """Whether the main clause has "not"; one with "no" has none."""
        return self.frame.is_negated(self.link) and not self.subject_has_no

    @property
    def pronoun(self) -> Pronoun:
        """The German pronoun, by the gender of the referent."""
        return PRONOUN_OF_GENDER[self.referent.gender]


@brief
@dataclass(frozen=True, kw_only=True)
class PronounSentence:
    """An English sentence with *it*, its German translation, and the referent of the pronoun.

    Args:
        source, target: the English sentence and its German translation.
        pronoun: the German pronoun, "es", "er" or "sie".
        referent, other: the English noun that *it* refers to, as it is in the source, and the other noun.
        it_index, referent_index, other_index: positions in `source.split()`, whose words include punctuation.
        target_pronoun_index: position of the pronoun in `target.split()`.
        frame: the name of the sentence frame, its plain English verb.
        derivation: all choices of the sentence.
    """

    source: str
    target: str
    pronoun: Pronoun
    referent: str
    other: str
    it_index: int
    referent_index: int
    other_index: int
    target_pronoun_index: int
    frame: str
    derivation: Derivation = field(repr=False)


_DEGREE_IN_GERMAN: dict[Degree, str] = {"": "", "too": "zu", "very": "sehr", "still": "noch"}


def write(derivation: Derivation) -> PronounSentence:
    """Write a derivation out in English and German.

    >>> from dataclasses import replace
    >>> from regard_lab.text.pronouns import ARTICLE_SENTENCES
    >>> write(replace(ARTICLE_SENTENCES[0].derivation, link_first=True)).target
    'Weil es zu müde war, überquerte das Tier die Straße nicht.'
    """
    source = _write_english(derivation)
    target = _write_german(derivation)
    english_words = [word.strip(".,").lower() for word in source.split()]
    return PronounSentence(
        source=source,
        target=target,
        pronoun=derivation.pronoun,
        referent=derivation.referent.english,
        other=derivation.other.english,
        it_index=english_words.index("it"),
        referent_index=english_words.index(derivation.referent.english),
        other_index=english_words.index(derivation.other.english),
        target_pronoun_index=target.split().index(derivation.pronoun),
        frame=derivation.frame.name,
        derivation=derivation,
    )


def _write_english(derivation: Derivation) -> str:
    link = derivation.link
    verb = derivation.frame.negated if derivation.has_not else derivation.frame.plain
    if derivation.apostrophe:
        verb = verb.replace(" not", f"n{derivation.apostrophe}t")
    determiner = "no" if derivation.subject_has_no else "the"
    subject = _english_noun(determiner, derivation.subject_attribute, derivation.subject)
    object_ = _english_noun("the", derivation.object_attribute, derivation.object)
    time = derivation.time.english if derivation.time else ""
    main = _spaced(time, subject, verb, object_)
    reason = _spaced(link.english, "it was", derivation.degree, derivation.drawback.english)
    if derivation.link_first:
        return _finished(f"{reason}, {main}")
    if link.relation == "obstacle":
        return _finished(f"{main}, {reason}")
    return _finished(f"{main} {reason}")


def _english_noun(determiner: str, attribute: Attribute | None, noun: Noun) -> str:
    return _spaced(determiner, attribute.english if attribute else "", noun.english)


def _write_german(derivation: Derivation) -> str:
    frame = derivation.frame
    link = derivation.link
    object_ = noun_phrase(
        derivation.object, frame.case, derivation.object_attribute, frame.preposition
    )
    negation = "nicht" if derivation.has_not else ""
    finite, rest = frame.german.format(object=object_, **{"not": negation}).split(maxsplit=1)
    if derivation.subject_has_no:
        subject = no_noun_phrase(derivation.subject, derivation.subject_attribute)
    else:
        subject = noun_phrase(derivation.subject, "nominative", derivation.subject_attribute)

    quality = _spaced(_DEGREE_IN_GERMAN[derivation.degree], derivation.drawback.german)
    if link.relation == "obstacle":  # a main clause, whose verb is second
        reason = _spaced(link.german, derivation.pronoun, "war", quality)
    else:
        reason = _spaced(link.german, derivation.pronoun, quality, "war")
    # The finite verb of the main clause is second, so the subject follows it behind a clause or a time.
    if derivation.link_first:
        return _finished(f"{reason}, {_spaced(finite, subject, rest)}")
    if derivation.time:
        return _finished(f"{_spaced(derivation.time.german, finite, subject, rest)}, {reason}")
    return _finished(f"{_spaced(subject, finite, rest)}, {reason}")


def _spaced(*parts: str) -> str:
    """The parts that are not empty, joined by single spaces."""
    return " ".join(" ".join(parts).split())


def _finished(sentence: str) -> str:
    """The sentence with a capital letter and a full stop."""
    return f"{sentence[0].upper()}{sentence[1:]}."


_ENDINGS: tuple[tuple[Degree, Drawback], ...] = (
    ("too", DRAWBACK_BY_ENGLISH["tired"]),
    ("too", DRAWBACK_BY_ENGLISH["wide"]),
    ("", DRAWBACK_BY_ENGLISH["congested"]),
)

# Of the articles: "The animal didn't cross the street because it was ...", with either apostrophe.
ARTICLE_SENTENCES: tuple[PronounSentence, ...] = tuple(
    write(
        Derivation(
            frame=FRAMES[0],
            subject=NOUN_BY_ENGLISH["animal"],
            object=NOUN_BY_ENGLISH["street"],
            link=BECAUSE,
            refers_to_subject=drawback.sense == "animal",
            drawback=drawback,
            degree=degree,
            apostrophe=apostrophe,
        )
    )
    for apostrophe, (degree, drawback) in product(("'", "’"), _ENDINGS)
)
