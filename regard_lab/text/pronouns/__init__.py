"""The embedded corpus: English-German sentences whose German pronoun depends on what *it* refers to.

A grammar generates them (`frames`, `lexicon`, `sentences`), so the referent of each is known. Noun pairs of the test
split never occur in training, and contrast pairs differ in one English word that changes the pronoun.
"""

from regard_lab.text.pronouns.frames import LINKS
from regard_lab.text.pronouns.lexicon import NOUN_BY_ENGLISH, SENSES
from regard_lab.text.pronouns.measures import (
    contrast_accuracy,
    majority_baseline,
    pronoun_accuracy,
    pronoun_of,
    swap_adjective,
    swap_other,
    swap_referent,
)
from regard_lab.text.pronouns.sentences import ARTICLE_SENTENCES, PRONOUNS, PronounSentence
from regard_lab.text.pronouns.splits import (
    SPLITS,
    WEIGHTS,
    ChoiceProbabilities,
    Split,
    make_contrast_pairs,
    make_split,
    make_twins,
    split_of_pair,
)

__all__ = [
    # the corpus
    "ARTICLE_SENTENCES",
    "PronounSentence",
    "SPLITS",
    "Split",
    "split_of_pair",
    "WEIGHTS",
    "ChoiceProbabilities",
    "make_split",
    "make_contrast_pairs",
    "make_twins",
    "swap_referent",
    "swap_other",
    "swap_adjective",
    # its words
    "LINKS",
    "NOUN_BY_ENGLISH",
    "PRONOUNS",
    "SENSES",
    # its measures
    "contrast_accuracy",
    "majority_baseline",
    "pronoun_accuracy",
    "pronoun_of",
]
