"""The causal check: change a noun's gender and see whether the pronoun of the translation follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from regard.errors import ArgumentError
from regard.kinds import a_list, shown
from regard.text.pronouns import PronounSentence, pronoun_of, swap_other, swap_referent


@dataclass(frozen=True)
class SwapCheck:
    """What swapping nouns did to the pronouns, as shares of all sentences.

    Args:
        right: the pronoun was right before any swap; the other two cannot be larger.
        followed: right before, and right again after the *referent* was swapped for a noun of another gender,
            which asks for another pronoun.
        kept: right before, and still right after the *other* noun was swapped for one of another gender, which
            must change nothing. A translator that follows any noun scores low here.
        count: sentences checked, each translated three times.
    """

    right: float
    followed: float
    kept: float
    count: int


def swap_check(
    translate: Callable[[list[str]], Sequence[str]], sentences: Sequence[PronounSentence], seed: int = 0
) -> SwapCheck:
    """Swap the referent, and as a control the other noun, and count how often the pronoun does what it should.

    Where the nouns of a sentence differ in gender the new noun has the third one, so that following is told from
    jumping to the other noun.

    Args:
        translate: lines in, one translation for each out; called once.
        sentences: what to vary; the new pairs of nouns may be of any split.
        seed: another seed may choose other nouns.

    Raises:
        ArgumentError: no sentences, or another number of translations than lines.

    >>> from regard.text.pronouns import ARTICLE_SENTENCES
    >>> swap_check(lambda lines: ["weil es müde war"] * len(lines), ARTICLE_SENTENCES[:1])
    SwapCheck(right=1.0, followed=0.0, kept=1.0, count=1)
    """
    if not callable(translate):
        raise ArgumentError(f"translate is {shown(translate)}; it needs a function from lines to their translations")
    sentences = a_list("sentences", sentences, PronounSentence, "PronounSentences, as make_split gives them")
    if not sentences:
        raise ArgumentError("there are 0 sentences to swap nouns in, and a share of nothing is no number; give one")
    versions = [
        *sentences,
        *(swap_referent(sentence, seed) for sentence in sentences),
        *(swap_other(sentence, seed) for sentence in sentences),
    ]
    given = translate([version.source for version in versions])
    outputs = a_list("what translate gave", given, str, "a list of translations")
    if len(outputs) != len(versions):
        raise ArgumentError(
            f"{len(versions)} lines came back as {len(outputs)} translations; give one for each, in order"
        )
    right = [pronoun_of(output) == version.pronoun for version, output in zip(versions, outputs, strict=True)]
    count = len(sentences)
    before, followed, kept = right[:count], right[count : 2 * count], right[2 * count :]
    return SwapCheck(
        right=sum(before) / count,
        followed=sum(map(all, zip(before, followed, strict=True))) / count,
        kept=sum(map(all, zip(before, kept, strict=True))) / count,
        count=count,
    )
