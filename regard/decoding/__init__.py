"""From a model's scores to text: greedy search, draws and beam search over any model that can `start` and `step`.

A search keeps its state in hand (caches, hypotheses), so one model serves many at once. `Translator` and `Generator`
join a model and its tokeniser, and `evaluate` scores translations.
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
    # draws
    "Sampling",
    "filtered_probabilities",
    # scores
    "evaluate",
    "Evaluation",
    "perplexity",
]
