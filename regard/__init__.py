"""Attention for PyTorch: every mechanism behind one call, with one written meaning.

    import regard as rg
    from regard import patterns as p
    out = rg.attention(q, k, v, pattern=p.Causal() & p.CausalWindow(512))

Names load when they are first used, so that `import regard` costs nothing. `torch.export.load` needs
`import regard.functional`, which `import regard` does if torch is imported already.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from regard import mechanisms, patterns, positions
    from regard.core.plan import AttentionDetail, Plan
    from regard.core.result import top_keys
    from regard.errors import (
        ArgumentError,
        CheckpointError,
        DataError,
        KeywordError,
        MissingPackageError,
        NotFoundError,
        OccupiedError,
        RegardError,
        ShapeError,
        UnsupportedError,
    )
    from regard.functional import attention, attention_detail, merge_attention, plan_attention
    from regard.layers import MultiHeadAttention, record_attention
    from regard.layers.caches import GrowingCache

# Where each public name lives; the rooms below it (patterns, layers, ...) are imported by their own names.
_HOMES = {
    "regard.functional": ("attention", "plan_attention", "attention_detail", "merge_attention"),
    "regard.core.result": ("top_keys", "weights_of"),
    "regard.core.plan": ("AttentionDetail", "Plan"),
    "regard.layers": ("MultiHeadAttention", "record_attention"),
    "regard.layers.caches": ("GrowingCache", "StaticCache", "RingCache", "RecurrentState", "load_cache"),
    "regard.errors": (
        "RegardError",
        "ArgumentError",
        "ShapeError",
        "KeywordError",
        "UnsupportedError",
        "DataError",
        "CheckpointError",
        "NotFoundError",
        "OccupiedError",
        "MissingPackageError",
    ),
}
_ROOMS = (
    "patterns",
    "mechanisms",
    "bias",
    "positions",
    "layers",
    "distributed",
)
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "attention",
    "plan_attention",
    "attention_detail",
    "merge_attention",
    "top_keys",
    "weights_of",
    "AttentionDetail",
    "Plan",
    "MultiHeadAttention",
    "record_attention",
    "GrowingCache",
    "StaticCache",
    "RingCache",
    "RecurrentState",
    "load_cache",
    "patterns",
    "mechanisms",
    "bias",
    "positions",
    "RegardError",
    "ArgumentError",
    "ShapeError",
    "KeywordError",
    "UnsupportedError",
    "DataError",
    "CheckpointError",
    "NotFoundError",
    "OccupiedError",
    "MissingPackageError",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"regard.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS, "__version__"])


if "torch" in sys.modules:  # so that torch.export.load finds the operation of a saved program
    import_module("regard.functional")
