"""Who may look at whom: patterns are values that compare, combine with `& | ~`, count, print and draw.

A pattern's truth is `allows(q_pos, k_pos)`; everything else (structure, dense form, text) agrees with it.
A new pattern is one file here, one export below and one row in `text.READABLE` if it has a text form.
"""

from regard.patterns.algebra import Both, Either, Not
from regard.patterns.base import Pattern
from regard.patterns.causal import Causal
from regard.patterns.explicit import Explicit
from regard.patterns.full import Full
from regard.patterns.grid import Grid
from regard.patterns.key_span import KeySpan
from regard.patterns.text import as_pattern, parse
from regard.patterns.where import Where
from regard.patterns.window import CausalWindow, SlidingWindow

__all__ = [
    "Pattern",
    "Full",
    "Causal",
    "SlidingWindow",
    "CausalWindow",
    "KeySpan",
    "Explicit",
    "Where",
    "Both",
    "Either",
    "Not",
    "Grid",
    "parse",
    "as_pattern",
]
