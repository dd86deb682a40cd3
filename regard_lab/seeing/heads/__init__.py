"""Which heads matter: effects of replaced heads, scores of what they look at, and the parts of one score."""

from regard_lab.seeing.heads.effects import Effect, HeadEffects, ablate, draw_head_effects, patch
from regard_lab.seeing.heads.replacing import Head
from regard_lab.seeing.heads.scores import ScoreParts, head_scores, score_parts

__all__ = [
    "ablate",
    "patch",
    "HeadEffects",
    "Effect",
    "Head",
    "draw_head_effects",
    "head_scores",
    "score_parts",
    "ScoreParts",
]
