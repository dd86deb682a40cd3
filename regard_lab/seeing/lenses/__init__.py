"""Lenses: what a written word depends on, as the signed relevance of each word that the model had read.

It is contrastive: it explains why one word was written rather than others. `relevance` is the call, `Relevance`
its record, `draw_relevance` its picture; `find_contrast` and `explain_contrasts` do the same for many sentences at
once.
"""

from regard_lab.seeing.lenses.contrast import Contrast, find_contrast
from regard_lab.seeing.lenses.explaining import LENSES, Lens, explain_contrasts, log_odds, relevance
from regard_lab.seeing.lenses.record import Relevance, draw_relevance

__all__ = [
    "relevance",
    "Relevance",
    "draw_relevance",
    "LENSES",
    "Lens",
    "Contrast",
    "find_contrast",
    "explain_contrasts",
    "log_odds",
]
