"""A sentence through attention, step by step: the lines that are shown are the lines that ran.

`walk` draws weights from a seed, `walk_run` takes those of a trained model; terminal, JSON and page show the same walk.
Either ends by computing the same in other ways, and raises if they differ.
"""

from regard.walkthrough.page import to_html
from regard.walkthrough.steps import Check, Given, Step, Walk, to_json
from regard.walkthrough.terminal import to_rich, to_text
from regard.walkthrough.walks import walk, walk_run
from regard.walkthrough.words import LIMIT, split_words

__all__ = [
    "walk", "walk_run", "Walk", "Step", "Given", "Check", "to_text", "to_rich", "to_json", "to_html", "split_words",
    "LIMIT",
]  # fmt: skip
