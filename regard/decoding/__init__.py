"""From a model's scores to text: greedy and beam search over any model that can `start` and `step`.

A search keeps its state in hand (caches, hypotheses), so one model serves many at once; `Translator` joins a model
and its tokeniser, and `evaluate` scores what comes out.
"""

from regard.decoding.beam import beam_search
from regard.decoding.evaluation import Evaluation, evaluate, perplexity
from regard.decoding.greedy import greedy_search
from regard.decoding.hypothesis import NORMALISATIONS, Hypothesis, SteppingModel, normalised
from regard.decoding.translator import Translation, Translator

__all__ = [
    "Translator",
    "Translation",
    "evaluate",
    "Evaluation",
    "perplexity",
    "greedy_search",
    "beam_search",
    "Hypothesis",
    "NORMALISATIONS",
    "normalised",
    "SteppingModel",
]
