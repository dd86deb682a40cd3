"""Modules that hold weights around the one call; conversations hold the caches.

`MultiHeadAttention` is self- and cross-attention with any pattern; `record_attention` looks at it while it works.
"""

from regard.layers.context import ProjectedContext
from regard.layers.feed_forward import FeedForward
from regard.layers.multi_head import MultiHeadAttention
from regard.layers.projection import Projection, project
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
