"""Lenses: what a written word depends on, as the signed relevance of each word that the model had read.

It is contrastive: it explains why one word was written rather than others. `regard_lab.seeing.relevance` explains one
sentence; `find_contrast` and `explain_contrasts` do the same for many sentences at once.
"""

from regard_lab.seeing.lenses.contrast import Contrast, find_contrast
from regard_lab.seeing.lenses.explaining import Lens, explain_contrasts

__all__ = [
    "Lens",
    "Contrast",
    "find_contrast",
    "explain_contrasts",
]
