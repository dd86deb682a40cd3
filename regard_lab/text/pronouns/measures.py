"""Measures of a translator on this corpus: pronoun accuracy, its baselines, and noun swaps as a causal check."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

from regard.errors import ArgumentError
from regard_lab.text.pronouns.frames import GERMAN_CONJUNCTIONS
from regard_lab.text.pronouns.lexicon import NOUNS
from regard_lab.text.pronouns.sentences import PRONOUNS, Pronoun, PronounSentence, write
from regard_lab.text.pronouns.splits import with_referent_moved


def swap_referent(sentence: PronounSentence, seed: int = 0) -> PronounSentence:
    """Replace the referent by a noun of the same class and another gender; the rest is unchanged.

    The causal check: does the translated pronoun follow? If the two nouns of the sentence differ in gender, the new
    noun has the third gender, so a pronoun that follows the new referent differs from one that follows the other noun.
    The new noun pair may belong to any split; another seed may choose another noun.

    >>> from regard_lab.text.pronouns import ARTICLE_SENTENCES
    >>> swapped = swap_referent(ARTICLE_SENTENCES[0])
    >>> swapped.source.replace(swapped.referent, "animal") == ARTICLE_SENTENCES[0].source
    True
    >>> swapped.pronoun
    'er'
    """
    return _swap(sentence, f"swap {seed} {sentence.source}", of_referent=True)


def swap_other(sentence: PronounSentence, seed: int = 0) -> PronounSentence:
    """Replace the noun that is not the referent by one of its class and another gender; the pronoun must not change.

    >>> from regard_lab.text.pronouns import ARTICLE_SENTENCES
    >>> swap_other(ARTICLE_SENTENCES[0]).pronoun == ARTICLE_SENTENCES[0].pronoun
    True
    """
    return _swap(sentence, f"swap other {seed} {sentence.source}", of_referent=False)


def swap_adjective(sentence: PronounSentence, seed: int = 0) -> PronounSentence | None:
    """Replace the adjective by one that fits the other noun, so that *it* refers to that noun; the rest is unchanged.

    Returns:
        The new sentence with its correct translation; None if no adjective fits the other noun only.

    >>> from regard_lab.text.pronouns import ARTICLE_SENTENCES
    >>> swapped = swap_adjective(ARTICLE_SENTENCES[0])
    >>> swapped.referent, swapped.pronoun
    ('street', 'sie')
    """
    random = Random(f"swap adjective {seed} {sentence.source}")
    moved = with_referent_moved(sentence.derivation, random)
    return None if moved is None else write(moved)


def _swap(sentence: PronounSentence, seed: str, *, of_referent: bool) -> PronounSentence:
    derivation = sentence.derivation
    replaced = derivation.referent if of_referent else derivation.other
    genders = (derivation.referent.gender, derivation.other.gender)
    candidates = [
        noun for noun in NOUNS if noun.sense == replaced.sense and noun.gender not in genders
    ]
    substitute = Random(seed).choice(candidates)
    if derivation.refers_to_subject == of_referent:
        return write(replace(derivation, subject=substitute))
    return write(replace(derivation, object=substitute))


def pronoun_of(target: str) -> Pronoun | None:
    """The pronoun of the subordinate clause in a German translation.

    It is the pronoun after a conjunction (weil, da, obwohl, aber); if there is none, the only pronoun of the text.

    Returns:
        "es", "er" or "sie"; None if there is no such pronoun, or more than one.

    >>> pronoun_of("Das Tier überquerte die Straße nicht, weil es zu müde war.")
    'es'
    >>> pronoun_of("Das Tier überquerte die Straße nicht.") is None
    True
    """
    words = [word.strip(".,;:!?\"'„“”»«()").lower() for word in target.split()]
    after_conjunction = {word for before, word in pairwise(words) if before in GERMAN_CONJUNCTIONS}
    everywhere = set(words)
    for candidates in (after_conjunction, everywhere):
        pronouns = [pronoun for pronoun in PRONOUNS if pronoun in candidates]
        if pronouns:
            return pronouns[0] if len(pronouns) == 1 else None
    return None


def pronoun_accuracy(sentences: Sequence[PronounSentence], outputs: Sequence[str]) -> float:
    """The share of translations with the correct pronoun.

    An output without a pronoun is wrong.

    Raises:
        ArgumentError: no sentences, or unequal numbers of sentences and outputs.

    >>> from regard_lab.text.pronouns import make_split
    >>> sentences = make_split("test", 4)
    >>> pronoun_accuracy(sentences, [sentence.target for sentence in sentences[:3]] + [""])
    0.75
    """
    _check_lengths("sentences", len(sentences), len(outputs))
    right = sum(map(_is_right, sentences, outputs))
    return right / len(sentences)


def majority_baseline(sentences: Sequence[PronounSentence]) -> float:
    """The pronoun accuracy of a translator that always writes the most frequent pronoun.

    Raises:
        ArgumentError: no sentences.

    >>> from regard_lab.text.pronouns import ARTICLE_SENTENCES
    >>> round(majority_baseline(ARTICLE_SENTENCES), 3)
    0.667
    """
    _check_lengths("sentences", len(sentences), len(sentences))
    counts = Counter(sentence.pronoun for sentence in sentences)
    return max(counts.values()) / len(sentences)


def contrast_accuracy(
    pairs: Sequence[tuple[PronounSentence, PronounSentence]], outputs: Sequence[tuple[str, str]]
) -> float:
    """The share of contrast pairs in which both pronouns are correct.

    Raises:
        ArgumentError: no sentences, or unequal numbers of sentences and outputs.

    >>> from regard_lab.text.pronouns import make_contrast_pairs
    >>> pairs = make_contrast_pairs(2)
    >>> first, second = pairs[0]
    >>> contrast_accuracy(pairs, [(first.target, second.target), ("weil es", "weil es")])
    0.5
    """
    _check_lengths("sentence pairs", len(pairs), len(outputs))
    right = 0
    for (first, second), (output, other_output) in zip(pairs, outputs, strict=True):
        right += _is_right(first, output) and _is_right(second, other_output)
    return right / len(pairs)


def _is_right(sentence: PronounSentence, output: str) -> bool:
    return pronoun_of(output) == sentence.pronoun


def _check_lengths(what: str, expected: int, outputs: int) -> None:
    if expected == 0:
        raise ArgumentError(f"there are 0 {what} to measure; give at least one")
    if expected != outputs:
        raise ArgumentError(
            f"{expected} {what} came with {outputs} outputs; give one output for each, in order"
        )
