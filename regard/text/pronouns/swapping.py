"""The causal check: put a noun of another gender in the referent's place and see whether the pronoun follows."""

from dataclasses import replace
from random import Random

from regard.text.pronouns.nouns import NOUNS
from regard.text.pronouns.sentences import PronounSentence
from regard.text.pronouns.writing import write


def swap_referent(sentence: PronounSentence, seed: int = 0) -> PronounSentence:
    """Replace the referent by a noun of its class but of another gender; all else stays.

    Where both nouns of the sentence differ in gender the new noun has the third one, so that a pronoun that
    merely jumped to the other noun is told from one that followed. The new pair may be of any split.

    Args:
        sentence: the sentence to vary.
        seed: another seed may choose another noun.

    Returns:
        The varied sentence with its right translation.

    Example:
        >>> from regard.text.pronouns import ARTICLE_SENTENCES
        >>> swapped = swap_referent(ARTICLE_SENTENCES[0])
        >>> swapped.source.replace(swapped.referent, "animal") == ARTICLE_SENTENCES[0].source
        True
        >>> swapped.pronoun
        'er'
    """
    return _swap(sentence, f"swap {seed} {sentence.source}", of_referent=True)


def swap_other(sentence: PronounSentence, seed: int = 0) -> PronounSentence:
    """Replace the noun that *it* does not mean by one of its class but of another gender: the pronoun must stay.

    Args:
        sentence: the sentence to vary.
        seed: another seed may choose another noun.

    Returns:
        The varied sentence with its right translation.

    Example:
        >>> from regard.text.pronouns import ARTICLE_SENTENCES
        >>> swap_other(ARTICLE_SENTENCES[0]).pronoun == ARTICLE_SENTENCES[0].pronoun
        True
    """
    return _swap(sentence, f"swap other {seed} {sentence.source}", of_referent=False)


def _swap(sentence: PronounSentence, seed: str, *, of_referent: bool) -> PronounSentence:
    derivation = sentence.derivation
    replaced = derivation.referent if of_referent else derivation.other
    genders = (derivation.referent.gender, derivation.other.gender)
    candidates = [noun for noun in NOUNS if noun.sense == replaced.sense and noun.gender not in genders]
    substitute = Random(seed).choice(candidates)
    if derivation.refers_to_subject == of_referent:
        return write(replace(derivation, subject=substitute))
    return write(replace(derivation, object=substitute))
