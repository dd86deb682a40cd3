"""Attention for one sentence, step by step, with every number and the line of PyTorch that computed it.

`walk` computes one layer with weights drawn from a seed or given, `walk_whole` a whole small model, `walk_whole_run` a
whole trained one. Each returns a `Walk`, which can be written as text or JSON. The results are
compared with other ways to compute them; a difference raises.
"""

from regard_lab.walkthrough.steps import Step, Walk
from regard_lab.walkthrough.walks import example, walk, walk_whole
from regard_lab.walkthrough.writing import to_json, to_text

__all__ = [
    "walk",
    "walk_whole",
    "example",
    "Walk",
    "Step",
    "to_text",
    "to_json",
]
