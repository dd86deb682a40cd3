"""The sentences that articles about attention use, verbatim, as derivations of the grammar."""

from itertools import product

from regard.text.pronouns.adjectives import DRAWBACK_BY_ENGLISH
from regard.text.pronouns.frames import FRAMES
from regard.text.pronouns.links import BECAUSE
from regard.text.pronouns.nouns import NOUN_BY_ENGLISH
from regard.text.pronouns.sentences import Degree, Derivation, PronounSentence
from regard.text.pronouns.writing import write

_ENDINGS: tuple[tuple[Degree, str], ...] = (("too", "tired"), ("too", "wide"), ("", "congested"))


def _article_sentences() -> tuple[PronounSentence, ...]:
    animal, street = NOUN_BY_ENGLISH["animal"], NOUN_BY_ENGLISH["street"]
    crossed = next(frame for frame in FRAMES if frame.name == "crossed")
    return tuple(
        write(
            Derivation(
                frame=crossed,
                subject=animal,
                object=street,
                refers_to_subject=DRAWBACK_BY_ENGLISH[drawback].sense == animal.sense,
                drawback=DRAWBACK_BY_ENGLISH[drawback],
                degree=degree,
                link=BECAUSE,
                apostrophe=apostrophe,
            )
        )
        for apostrophe, (degree, drawback) in product(("'", "’"), _ENDINGS)
    )


ARTICLE_SENTENCES: tuple[PronounSentence, ...] = _article_sentences()
