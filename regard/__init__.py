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

if TYPE_CHECKING:  # the same names for type checkers
    from regard import bias as bias
    from regard import mechanisms as mechanisms
    from regard import patterns as patterns
    from regard import positions as positions
    from regard.core.plan import AttentionDetail as AttentionDetail
    from regard.core.plan import Plan as Plan
    from regard.core.result import top_keys as top_keys
    from regard.core.result import weights_of as weights_of
    from regard.errors import ArgumentError as ArgumentError
    from regard.errors import CheckpointError as CheckpointError
    from regard.errors import DataError as DataError
    from regard.errors import KeywordError as KeywordError
    from regard.errors import MissingPackageError as MissingPackageError
    from regard.errors import NotFoundError as NotFoundError
    from regard.errors import OccupiedError as OccupiedError
    from regard.errors import RegardError as RegardError
    from regard.errors import ShapeError as ShapeError
    from regard.errors import UnsupportedError as UnsupportedError
    from regard.functional import attention as attention
    from regard.functional import attention_detail as attention_detail
    from regard.functional import attention_varlen as attention_varlen
    from regard.functional import merge_attention as merge_attention
    from regard.functional import plan_attention as plan_attention
    from regard.layers import LatentAttention as LatentAttention
    from regard.layers import MultiHeadAttention as MultiHeadAttention
    from regard.layers import record_attention as record_attention
    from regard.layers.caches import RecurrentState as RecurrentState
    from regard.layers.caches import load_cache as load_cache

__version__ = "0.1.0"

# Where each public name is defined; the packages at the end are imported by their own names.
_HOMES = {
    "regard.functional": "attention attention_varlen plan_attention attention_detail merge_attention",
    "regard.core.result": "top_keys weights_of",
    "regard.core.plan": "AttentionDetail Plan",
    "regard.layers": "MultiHeadAttention LatentAttention record_attention",
    "regard.layers.caches": "RecurrentState load_cache",
    "regard.errors": "RegardError ArgumentError ShapeError KeywordError UnsupportedError DataError CheckpointError "
    "NotFoundError OccupiedError MissingPackageError",
}
_PACKAGES = ("patterns", "mechanisms", "bias", "positions")
_HOME_OF: dict[str, str] = {}
for _home in _HOMES:
    _HOME_OF |= dict.fromkeys(_HOMES[_home].split(), _home)

__all__ = [*_HOME_OF, *_PACKAGES]


def __getattr__(name: str) -> Any:
    if name in (*_PACKAGES, "layers", "distributed"):
        return import_module(f"regard.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "layers", "distributed", "__version__"])


if "torch" in sys.modules:  # so that torch.export.load finds the operation of a saved program
    import_module("regard.functional")
