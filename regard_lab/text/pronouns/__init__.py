"""The embedded corpus: English-German sentences whose German pronoun depends on what *it* refers to.

A grammar generates them, so the referent of each is known. Noun pairs of the test split never occur in training, and
contrast pairs differ in one English word that changes the pronoun.
"""

from regard_lab.text.pronouns.frames import FRAMES, LINKS, TIMES, Frame, Link, Time
from regard_lab.text.pronouns.lexicon import (
    ATTRIBUTES,
    DRAWBACKS,
    GENDERS,
    NOUN_BY_ENGLISH,
    NOUNS,
    SENSES,
    Attribute,
    Drawback,
    Noun,
    telling_drawbacks,
)
from regard_lab.text.pronouns.measures import (
    contrast_accuracy,
    majority_baseline,
    pronoun_accuracy,
    pronoun_of,
    swap_adjective,
    swap_other,
    swap_referent,
)
from regard_lab.text.pronouns.sentences import (
    ARTICLE_SENTENCES,
    PRONOUNS,
    Degree,
    Derivation,
    Pronoun,
    PronounSentence,
    write,
)
from regard_lab.text.pronouns.splits import (
    LARGEST_COUNT,
    SPLITS,
    WEIGHTS,
    Split,
    Weights,
    make_contrast_pairs,
    make_split,
    make_twins,
    split_of_pair,
)

__all__ = [
    # the corpus
    "ARTICLE_SENTENCES",
    "LARGEST_COUNT",
    "SPLITS",
    "PronounSentence",
    "Split",
    "make_contrast_pairs",
    "make_split",
    "make_twins",
    "swap_referent",
    "swap_other",
    "swap_adjective",
    # its measures
    "contrast_accuracy",
    "majority_baseline",
    "pronoun_accuracy",
    "pronoun_of",
    # its grammar
    "ATTRIBUTES",
    "DRAWBACKS",
    "FRAMES",
    "GENDERS",
    "LINKS",
    "NOUNS",
    "NOUN_BY_ENGLISH",
    "PRONOUNS",
    "SENSES",
    "TIMES",
    "WEIGHTS",
    "Attribute",
    "Degree",
    "Derivation",
    "Drawback",
    "Frame",
    "Link",
    "Noun",
    "Pronoun",
    "Time",
    "Weights",
    "split_of_pair",
    "telling_drawbacks",
    "write",
]
