"""The embedded corpus: English-German sentences in which German must know what *it* means.

A grammar writes them, so each carries its true referent; the pairs of nouns of the test split never occur in
training, and contrast pairs change one English word so that the pronoun must change with it.
"""

from regard.text.pronouns.adjectives import ATTRIBUTES, DRAWBACKS, Attribute, Drawback, telling_drawbacks
from regard.text.pronouns.articles import ARTICLE_SENTENCES
from regard.text.pronouns.division import SPLITS, Split, split_of_pair
from regard.text.pronouns.frames import FRAMES, Frame
from regard.text.pronouns.german import PRONOUNS, Pronoun
from regard.text.pronouns.links import LINKS, Link
from regard.text.pronouns.measures import contrast_accuracy, majority_baseline, pronoun_accuracy, pronoun_of
from regard.text.pronouns.nouns import GENDERS, NOUN_BY_ENGLISH, NOUNS, SENSES, Noun
from regard.text.pronouns.sampling import WEIGHTS, Weights
from regard.text.pronouns.sentences import Degree, Derivation, PronounSentence
from regard.text.pronouns.splits import LARGEST_COUNT, make_contrast_pairs, make_split
from regard.text.pronouns.swapping import swap_other, swap_referent
from regard.text.pronouns.times import TIMES, Time
from regard.text.pronouns.writing import write

__all__ = [
    # the corpus
    "ARTICLE_SENTENCES",
    "LARGEST_COUNT",
    "SPLITS",
    "PronounSentence",
    "Split",
    "make_contrast_pairs",
    "make_split",
    "swap_referent",
    "swap_other",
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
