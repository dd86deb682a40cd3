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
from regard_lab.seeing.lenses.explaining import LENSES, relevance
from regard_lab.seeing.lenses.record import Relevance, draw_relevance
from regard_lab.seeing.maps import AttentionMaps, TextMaps, look, look_text
from regard_lab.seeing.picture import draw_maps, draw_pattern

__all__ = [
    "look",
    "AttentionMaps",
    "draw_attention",
    "draw_maps",
    "draw_pattern",
    "show",
    "Page",
    "relevance",
    "Relevance",
    "draw_relevance",
    "LENSES",
    "ablate",
    "patch",
    "head_scores",
    "score_parts",
    "HeadEffects",
    "draw_head_effects",
    "look_text",
    "TextMaps",
]
