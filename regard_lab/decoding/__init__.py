"""Decoding: greedy search, sampling and beam search for any model with `start` and `step`.

The state of a search (caches, hypotheses) is separate from the model, so one model can serve several searches.
`Translator` and `Generator` join a model with its tokeniser; `evaluate` scores translations.
"""

from regard_lab.decoding.compiled import compile_steps, one_row_options
from regard_lab.decoding.constraints import Constraints
from regard_lab.decoding.generator import Generation, Generator, TextStream
from regard_lab.decoding.lines import SharedWork, share_lines, sharing
from regard_lab.decoding.sampling import Sampling, filtered_probabilities
from regard_lab.decoding.scoring import ScoredText, Word
from regard_lab.decoding.search import (
    NORMALISATIONS,
    Hypothesis,
    SpecialIds,
    beam_search,
    generate,
    greedy_search,
    normalised,
)
from regard_lab.decoding.translator import Evaluation, Translation, Translator, evaluate, perplexity

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
    "Constraints",
    "compile_steps",
    "one_row_options",
    # sampling
    "Sampling",
    "filtered_probabilities",
    # scores
    "evaluate",
    "Evaluation",
    "perplexity",
    "ScoredText",
    "Word",
    "SharedWork",
    "share_lines",
    "sharing",
]
