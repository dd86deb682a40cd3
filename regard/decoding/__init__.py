"""Decoding: greedy search, sampling and beam search for any model with `start` and `step`.

The state of a search (caches, hypotheses) is separate from the model, so one model can serve several searches.
`Translator` and `Generator` join a model with its tokeniser; `evaluate` scores translations.
"""

from regard.decoding.beam import beam_search
from regard.decoding.generate import generate, greedy_search
from regard.decoding.generator import Generation, Generator, TextStream
from regard.decoding.sampling import Sampling, filtered_probabilities
from regard.decoding.search import NORMALISATIONS, Hypothesis, SpecialIds, normalised
from regard.decoding.translator import Evaluation, Translation, Translator, evaluate, perplexity

__all__ = [
    # text to text
    "Translator",
    "Translation",
    "Generator",
    "Generation",
    "TextStream",
    # ids to ids
    "generate",
    "greedy_search",
    "beam_search",
    "Hypothesis",
    "NORMALISATIONS",
    "normalised",
    "SpecialIds",
    # sampling
    "Sampling",
    "filtered_probabilities",
    # scores
    "evaluate",
    "Evaluation",
    "perplexity",
]
