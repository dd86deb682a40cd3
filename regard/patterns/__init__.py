"""Who may look at whom: patterns are values that compare, combine with `& | ~`, count, print and draw.

A pattern's truth is `allows(q_pos, k_pos)`; everything else (structure, dense form, text) agrees with it.
A new pattern is one file here, one export below and one row in `text.READABLE` if it has a text form.
"""

from regard.patterns.algebra import Both, Either, Not
from regard.patterns.base import Pattern
from regard.patterns.causal import Causal
from regard.patterns.diagonals import Diagonals
from regard.patterns.dilated import DilatedWindow
from regard.patterns.explicit import Explicit
from regard.patterns.fixed import Fixed
from regard.patterns.full import Full
from regard.patterns.global_tokens import GlobalTokens
from regard.patterns.grid import Grid
from regard.patterns.key_span import KeySpan
from regard.patterns.lattice import Lattice
from regard.patterns.per_head import PerHead
from regard.patterns.position_sets import KeySet, QuerySet
from regard.patterns.prefix import Prefix
from regard.patterns.random_blocks import RandomBlocks
from regard.patterns.same_block import SameBlock
from regard.patterns.same_document import SameDocument
from regard.patterns.strided import Strided
from regard.patterns.summary import Summary
from regard.patterns.text import as_pattern, parse
from regard.patterns.where import Where
from regard.patterns.window import CausalWindow, SlidingWindow

__all__ = [
    "Pattern",
    "Full",
    "Causal",
    "SlidingWindow",
    "CausalWindow",
    "DilatedWindow",
    "GlobalTokens",
    "RandomBlocks",
    "Strided",
    "Fixed",
    "Prefix",
    "SameDocument",
    "KeySpan",
    "PerHead",
    "Explicit",
    "Where",
    "Both",
    "Either",
    "Not",
    "Diagonals",
    "Lattice",
    "SameBlock",
    "Summary",
    "KeySet",
    "QuerySet",
    "Grid",
    "parse",
    "as_pattern",
]
