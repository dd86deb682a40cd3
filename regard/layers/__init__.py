"""Attention layers: modules with weights around `regard.attention`.

`MultiHeadAttention` is self- and cross-attention with any pattern; `LatentAttention` is self-attention that caches one
short vector for each token. `record_attention` collects statistics while a model runs. Caches (`regard.layers.caches`)
belong to the caller, so one model serves several texts at once.
"""

from regard.layers.choosing import NSA, Chooser, MoBA
from regard.layers.feed_forward import FeedForward
from regard.layers.latent import LatentAttention
from regard.layers.lightning_indexer import LightningIndexer, choice_losses
from regard.layers.multi_head import MultiHeadAttention
from regard.layers.packed import PackedWeights, pack_weights, unpack_weights
from regard.layers.projected_context import ProjectedContext
from regard.layers.recording import record_attention
from regard.layers.variants import Difference, ValueResidual

__all__ = [
    "MultiHeadAttention",
    "ProjectedContext",
    "LatentAttention",
    "Difference",
    "ValueResidual",
    "Chooser",
    "MoBA",
    "NSA",
    "LightningIndexer",
    "choice_losses",
    "FeedForward",
    "PackedWeights",
    "pack_weights",
    "unpack_weights",
    "record_attention",
]
