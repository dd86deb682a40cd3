"""Inspect a model: attention weights, lenses on a written word, pictures, an explorer, statistics.

The inspected model is left unchanged. All functions merge sub-words in the same way, all pictures have a scale from 0
to 1, and shares are counted over all sentences, leaving none out. matplotlib is imported when a picture is drawn.
"""

from regard_lab.seeing.explorer import Page, draw_attention, show
from regard_lab.seeing.heads import (
    HeadEffects,
    ablate,
    draw_head_effects,
    head_scores,
    patch,
    score_parts,
)
from regard_lab.seeing.lenses import LENSES, Relevance, draw_relevance, relevance
from regard_lab.seeing.maps import (
    KINDS,
    AttentionMaps,
    Kind,
    TextMaps,
    look,
    look_batch,
    look_text,
    looked_at,
    tell_look,
)
from regard_lab.seeing.picture import draw_heads, draw_maps, draw_pattern
from regard_lab.seeing.referents import (
    HONESTY,
    Agreement,
    HeadChoice,
    ItWeights,
    SwapCheck,
    choose_head,
    it_weights,
    referent_agreement,
    swap_check,
)
from regard_lab.seeing.terminal import terminal_map, visible
from regard_lab.seeing.watching import merge

__all__ = [
    # look
    "look",
    "look_batch",
    "AttentionMaps",
    "Kind",
    "KINDS",
    "merge",
    # pictures and text
    "draw_attention",
    "draw_maps",
    "draw_heads",
    "draw_pattern",
    "terminal_map",
    "looked_at",
    "tell_look",
    "visible",
    # a page to explore them in
    "show",
    "Page",
    # what a written word depends on
    "relevance",
    "Relevance",
    "draw_relevance",
    "LENSES",
    # which heads matter
    "ablate",
    "patch",
    "head_scores",
    "score_parts",
    "HeadEffects",
    "draw_head_effects",
    # the referent of *it*
    "it_weights",
    "ItWeights",
    "choose_head",
    "HeadChoice",
    "referent_agreement",
    "Agreement",
    "swap_check",
    "SwapCheck",
    "HONESTY",
    # all weights of a language model or an encoder on a text
    "look_text",
    "TextMaps",
]
