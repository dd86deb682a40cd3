"""Attention for one sentence, step by step, with every number and the line of PyTorch that computed it.

`walk` draws weights from a seed, `walk_run` takes those of a trained model; `walk_whole` and `walk_whole_run` compute a
whole model with all layers. Each returns a `Walk`, which can be written as text, JSON or an HTML page. The results are
compared with other ways to compute them; a difference raises.
"""

from regard_lab.walkthrough.drawn import read_weights
from regard_lab.walkthrough.page import to_html
from regard_lab.walkthrough.steps import LIMIT, Check, Given, Step, Walk, split_words
from regard_lab.walkthrough.tables import shown_walk, to_json
from regard_lab.walkthrough.terminal import to_rich, to_text
from regard_lab.walkthrough.walks import example, walk, walk_run, walk_whole, walk_whole_run

__all__ = [
    "walk", "walk_run", "walk_whole", "walk_whole_run", "example", "read_weights", "Walk", "Step", "Given", "Check",
    "to_text", "to_rich", "to_json", "to_html", "shown_walk", "split_words", "LIMIT",
]  # fmt: skip
