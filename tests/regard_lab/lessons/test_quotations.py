"""The lesson about imprecise sentences puts only words in quotes that an article has."""

import re

from regard_lab.lessons import find_lesson

# Sentences of the articles that the lesson quotes from, word for word.
SENTENCES = (
    "each position can only influence the current and preceding positions in the sequence",
    "future tokens attending to past tokens",
    "This vector representation is then used as the query in the decoder's attention mechanism.",
    "This mechanism is used in both the encoder and decoder layers of the transformer.",
    "It allows the model to consider the entire input sequence for each token",
    "Represent the entities in the dataset that can be matched against the query.",
    "The operation of Multi-Head Attention begins with the division of the input into multiple heads.",
    "The query, key, and value vectors are all learned during training, and their dimensions are typically much "
    "smaller than the input size.",
    "This final projection is a crucial step in making the model's output interpretable.",
    "The concatenated results are then projected back to the original dimensionality, allowing the model to output a "
    "single vector.",
    "Single head attention can only focus on one position at a time",
    "their embedding dimensions must match",
    "In Bahdanau's version, the attention mechanism computes the variable length context vector first",
    "the attention scores are scaled by the square of the dimension of the keys",
    "the hidden dimensions 2 and 3 have about twice the wavelength",
    "The Sparse Transformer, Reformer, Linformer, and Linear Transformer all have a complexity per layer of O(n) or "
    "better",
    "The RNN model, on the other hand, has a complexity per layer of O(n * d^2), making it less efficient than the "
    "Transformer.",
    "The Sparse Transformer, used in the GPT-3 language model, leverages two distinct sparse attention patterns: "
    "strided and fixed.",
    "where Q', K', and V are all in the same dimension",
    "without sacrificing the ability to capture long-range dependencies within the data",
    "reducing the number of key-value heads without diminishing the model's capacity to capture complex data "
    "relationships",
    "this approach can lead to quality degradation due to reduced capacity for capturing complex patterns",
    "faster decoding with minimal quality degradation",
)
NAMES = {"causal"}  # of a pattern


def without_signs(text):
    """The words of a lesson's file, without its line ends and comment signs."""
    return re.sub(r"\s*\n(# *)?", " ", text).lower()


def test_every_phrase_in_quotes_stands_in_an_article_and_every_sentence_is_answered():
    quoted = set(re.findall("“([^”]+)”", without_signs(find_lesson("imprecise").text))) - NAMES
    sentences = [sentence.lower() for sentence in SENTENCES]
    for phrase in quoted:
        assert any(phrase in sentence for sentence in sentences), phrase
    for sentence in sentences:
        assert any(phrase in sentence for phrase in quoted), sentence
