"""Attention for one sentence, step by step, with every number and the line of PyTorch that computed it.

`walk` computes one layer with weights drawn from a seed or given, `walk_whole` a whole small model, `walk_whole_run` a
whole trained one. Each returns a `Walk`, which can be written as text or JSON. The results are
compared with other ways to compute them; a difference raises.
"""

from regard_lab.walkthrough.layer import read_weights
from regard_lab.walkthrough.steps import LIMIT, Check, Given, Step, Walk, split_words
from regard_lab.walkthrough.walks import example, walk, walk_whole, walk_whole_run
from regard_lab.walkthrough.writing import shown_walk, to_json, to_text

__all__ = [
    "walk",
    "walk_whole",
    "walk_whole_run",
    "example",
    "read_weights",
    "Walk",
    "Step",
    "Given",
    "Check",
    "to_text",
    "to_json",
    "shown_walk",
    "split_words",
    "LIMIT",
]
