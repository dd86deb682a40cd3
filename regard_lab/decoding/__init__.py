"""Decoding: greedy search, sampling and beam search for any model with `start` and `step`.

The state of a search (caches, hypotheses) is separate from the model, so one model can serve several searches.
`Translator` and `Generator` join a model with its tokeniser; `evaluate` scores translations.
"""

from regard_lab.decoding.beams import beam_search
from regard_lab.decoding.compiled import compile_steps, one_row_options
from regard_lab.decoding.constraints import Constraints
from regard_lab.decoding.generator import Generation, Generator
from regard_lab.decoding.lines import share_lines
from regard_lab.decoding.options import SearchOptions, SpecialIds
from regard_lab.decoding.sampling import Sampling
from regard_lab.decoding.scoring import ScoredText, ScoredWord
from regard_lab.decoding.search import generate, greedy_search
from regard_lab.decoding.starting import Hypothesis
from regard_lab.decoding.streaming import TextStream
from regard_lab.decoding.translator import Evaluation, Translation, Translator, evaluate, perplexity

__all__ = [
    "Translator",
    "Translation",
    "Generator",
    "Generation",
    "TextStream",
    "generate",
    "greedy_search",
    "beam_search",
    "SearchOptions",
    "Hypothesis",
    "SpecialIds",
    "Constraints",
    "compile_steps",
    "one_row_options",
    "Sampling",
    "evaluate",
    "Evaluation",
    "perplexity",
    "ScoredText",
    "ScoredWord",
    "share_lines",
]
