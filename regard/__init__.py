"""Attention for PyTorch: every mechanism behind one call, with one written meaning."""

from regard import mechanisms, patterns, positions
from regard.caches import GrowingCache
from regard.detail import AttentionDetail
from regard.errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    MissingPackageError,
    RegardError,
    ShapeError,
    UnsupportedError,
)
from regard.functional import attention, attention_detail, merge_attention, plan_attention
from regard.layers import MultiHeadAttention, record_attention
from regard.plan import Plan
from regard.statistics import top_keys

__version__ = "0.1.0"

__all__ = [
    "attention",
    "plan_attention",
    "attention_detail",
    "merge_attention",
    "top_keys",
    "AttentionDetail",
    "Plan",
    "MultiHeadAttention",
    "GrowingCache",
    "record_attention",
    "patterns",
    "mechanisms",
    "positions",
    "RegardError",
    "ArgumentError",
    "ShapeError",
    "UnsupportedError",
    "DataError",
    "CheckpointError",
    "MissingPackageError",
]
