"""Patterns define which query may look at which key: values that compare, combine with `& | ~`, count, print and draw.

`allows(q_pos, k_pos)` defines a pattern; everything else (structure, dense form, text) agrees with it.
A new pattern is one file here and two export lines below; its class registers itself, and the tests find it there.
"""

from regard.patterns.algebra import Full, both, canonical, either, negate
from regard.patterns.bands import Causal, CausalWindow, KeySpan, Prefix, SlidingWindow, from_band
from regard.patterns.base import Operations, Pattern
from regard.patterns.chosen import ChosenBlocks, ChosenKeys
from regard.patterns.counts import count
from regard.patterns.documents import SameDocument
from regard.patterns.drawing import draw
from regard.patterns.explicit import Explicit, KeyMask, Where
from regard.patterns.fixed import Fixed, SameBlock
from regard.patterns.image_windows import ImageWindows
from regard.patterns.neighbourhood import Neighbourhood
from regard.patterns.per_head import PerHead
from regard.patterns.position_sets import GlobalTokens
from regard.patterns.random_blocks import RandomBlocks
from regard.patterns.strided import Compressed, DilatedWindow, Strided
from regard.patterns.text import as_pattern, parse
from regard.patterns.tiles import tiles
from regard.patterns.tree import Tree

# Methods of Pattern call these functions, which are written in terms of patterns.
Pattern.operations = Operations(
    both=both,
    either=either,
    negate=negate,
    canonical=canonical,
    from_band=from_band,
    as_pattern=as_pattern,
    tiles=tiles,
    count=count,
    draw=draw,
)

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
    "Neighbourhood",
    "ImageWindows",
    "SameDocument",
    "KeySpan",
    "KeyMask",
    "ChosenBlocks",
    "ChosenKeys",
    "Compressed",
    "Tree",
    "PerHead",
    "Explicit",
    "Where",
    "SameBlock",
    "parse",
]
