"""The lesson about imprecise sentences puts only words in quotes that an article has."""

import re

from regard_lab.lessons import find_lesson

# Sentences of the articles that the lesson quotes from, word for word.
SENTENCES = (
    "each position can only influence the current and preceding positions in the sequence",
    "future tokens attending to past tokens",
    "The operation of Multi-Head Attention begins with the division of the input into multiple heads.",
    "This final projection is a crucial step in making the model's output interpretable.",
    "the attention mechanism computes the variable length context vector first",
    "It allows the model to consider the entire input sequence for each token",
    "the attention scores are scaled by the square of the dimension of the keys",
    "making it less efficient than the Transformer",
    "Single head attention can only focus on one position at a time",
    "Linear Transformer all have a complexity per layer of O(n) or better",
    "the hidden dimensions 2 and 3 have about twice the wavelength",
    "their dimensions are typically much smaller than the input size",
    "their embedding dimensions must match",
)
NAMES = {"causal"}  # of a pattern


def test_every_phrase_in_quotes_stands_in_an_article():
    text, _ = find_lesson("imprecise").markdown()
    quoted = set(re.findall("“([^”]+)”", text)) - NAMES
    assert len(quoted) >= 6
    assert not {
        phrase
        for phrase in quoted
        if not any(phrase.lower() in sentence.lower() for sentence in SENTENCES)
    }
