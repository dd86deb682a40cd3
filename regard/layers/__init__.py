"""Modules that hold weights around the one call; conversations hold the caches.

`MultiHeadAttention` is self- and cross-attention with any pattern; `record_attention` looks at it while it works.
"""

from regard.layers.feed_forward import FeedForward, Projection, project
from regard.layers.multi_head import MultiHeadAttention, ProjectedContext
from regard.layers.recording import Recording, record_attention

__all__ = [
    "MultiHeadAttention",
    "ProjectedContext",
    "FeedForward",
    "Projection",
    "project",
    "Recording",
    "record_attention",
]
