"""German agreement: articles, adjective endings, contracted prepositions and pronouns, each as one table."""

from typing import Literal

from regard.text.pronouns.adjectives import Attribute
from regard.text.pronouns.nouns import Gender, Noun

Case = Literal["nominative", "accusative", "dative"]
Pronoun = Literal["es", "er", "sie"]

PRONOUN_OF_GENDER: dict[Gender, Pronoun] = {"neuter": "es", "masculine": "er", "feminine": "sie"}
PRONOUNS: tuple[Pronoun, ...] = tuple(PRONOUN_OF_GENDER.values())

_ARTICLE: dict[Case, dict[Gender, str]] = {
    "nominative": {"masculine": "der", "feminine": "die", "neuter": "das"},
    "accusative": {"masculine": "den", "feminine": "die", "neuter": "das"},
    "dative": {"masculine": "dem", "feminine": "der", "neuter": "dem"},
}
_ENDING_AFTER_ARTICLE: dict[Case, dict[Gender, str]] = {
    "nominative": {"masculine": "e", "feminine": "e", "neuter": "e"},
    "accusative": {"masculine": "en", "feminine": "e", "neuter": "e"},
    "dative": {"masculine": "en", "feminine": "en", "neuter": "en"},
}
_NO: dict[Gender, str] = {"masculine": "kein", "feminine": "keine", "neuter": "kein"}
_ENDING_AFTER_NO: dict[Gender, str] = {"masculine": "er", "feminine": "e", "neuter": "es"}
_CONTRACTED = {("in", "dem"): "im", ("in", "das"): "ins", ("von", "dem"): "vom"}


def noun_phrase(noun: Noun, case: Case, attribute: Attribute | None = None, preposition: str = "") -> str:
    """The noun with its definite article, in agreement, after a preposition if there is one.

    Args:
        noun: the noun, always singular.
        case: the case that verb or preposition asks for.
        attribute: an adjective in front of the noun.
        preposition: written first, and contracted with the article where German does so ("im", "ins", "vom").

    Returns:
        The phrase in lower case but for the noun.

    Example:
        >>> from regard.text.pronouns.nouns import NOUN_BY_ENGLISH
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
    """The noun with "kein" in the nominative, the only case in which the grammar negates a noun.

    Example:
        >>> from regard.text.pronouns.nouns import NOUN_BY_ENGLISH
        >>> no_noun_phrase(NOUN_BY_ENGLISH["animal"], Attribute(english="old", stem="alt"))
        'kein altes Tier'
    """
    described = f" {attribute.stem}{_ENDING_AFTER_NO[noun.gender]}" if attribute else ""
    return f"{_NO[noun.gender]}{described} {noun.german}"
