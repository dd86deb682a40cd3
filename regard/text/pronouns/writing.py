"""Writing a derivation out: the same choices put into English words and into German ones."""

from regard.text.pronouns.german import no_noun_phrase, noun_phrase
from regard.text.pronouns.nouns import Noun
from regard.text.pronouns.sentences import Degree, Derivation, PronounSentence

_DEGREE_IN_GERMAN: dict[Degree, str] = {"": "", "too": "zu", "very": "sehr", "still": "noch"}


def write(derivation: Derivation) -> PronounSentence:
    """Write a derivation out in English and German.

    Args:
        derivation: the choices to put into words.

    Returns:
        The sentence with its translation and the positions of *it*, of its referent and of the other noun.

    Example:
        >>> from dataclasses import replace
        >>> from regard.text.pronouns import ARTICLE_SENTENCES
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
    frame, link = derivation.frame, derivation.link
    says_not = frame.is_negated(link) and not derivation.subject_has_no
    verb = frame.negated if says_not else frame.plain
    if derivation.apostrophe:
        verb = verb.replace(" not", f"n{derivation.apostrophe}t")
    subject = _english_noun(derivation.subject, derivation, "no" if derivation.subject_has_no else "the")
    time = derivation.time.english if derivation.time else ""
    main = _spaced(time, subject, verb, _english_noun(derivation.object, derivation, "the"))
    reason = _spaced(link.english, "it was", derivation.degree, derivation.drawback.english)
    if derivation.link_first:
        return _finished(f"{reason}, {main}")
    return _finished(f"{main}, {reason}" if link.relation == "obstacle" else f"{main} {reason}")


def _write_german(derivation: Derivation) -> str:
    frame, link = derivation.frame, derivation.link
    is_negated = frame.is_negated(link)
    object_ = noun_phrase(derivation.object, frame.case, derivation.object_attribute, frame.preposition)
    clause = frame.german.format(
        object=object_, **{"not": "nicht" if is_negated and not derivation.subject_has_no else ""}
    )
    finite, rest = clause.split(maxsplit=1)
    if derivation.subject_has_no:
        subject = no_noun_phrase(derivation.subject, derivation.subject_attribute)
    else:
        subject = noun_phrase(derivation.subject, "nominative", derivation.subject_attribute)
    quality = _spaced(_DEGREE_IN_GERMAN[derivation.degree], derivation.drawback.german)
    if link.relation == "obstacle":
        reason = _spaced(link.german, derivation.pronoun, "war", quality)
    else:
        reason = _spaced(link.german, derivation.pronoun, quality, "war")
    if derivation.link_first:  # whatever stands first, the finite verb follows it and the subject comes third
        return _finished(f"{reason}, {_spaced(finite, subject, rest)}")
    if derivation.time:
        return _finished(f"{_spaced(derivation.time.german, finite, subject, rest)}, {reason}")
    return _finished(f"{_spaced(subject, finite, rest)}, {reason}")


def _english_noun(noun: Noun, derivation: Derivation, determiner: str) -> str:
    attribute = derivation.subject_attribute if noun is derivation.subject else derivation.object_attribute
    return _spaced(determiner, attribute.english if attribute else "", noun.english)


def _spaced(*parts: str) -> str:
    """The parts with one space between them; empty ones leave no trace."""
    return " ".join(" ".join(parts).split())


def _finished(sentence: str) -> str:
    """The sentence with its capital and its full stop."""
    return f"{sentence[0].upper()}{sentence[1:]}."
