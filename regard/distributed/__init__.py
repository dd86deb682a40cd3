"""Attention over a sequence that several processes share, by PyTorch's torchrun, meshes and collectives."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.distributed.layout import Layout, shard, unshard

# These modules import torch.distributed.tensor, which takes seconds, so they are imported on first use.
if TYPE_CHECKING:
    from regard.distributed.api import attention, attention_detail
    from regard.distributed.context_parallel import ContextParallel
    from regard.distributed.fsdp import shard_model
    from regard.distributed.planning import Traffic, bytes_exchanged
    from regard.distributed.tensor_parallel import TensorParallel, tensor_parallel_plan

__all__ = [
    "ContextParallel",
    "attention",
    "attention_detail",
    "bytes_exchanged",
    "Layout",
    "TensorParallel",
    "Traffic",
    "shard",
    "shard_model",
    "tensor_parallel_plan",
    "unshard",
]

_IMPORTED_ON_FIRST_USE = {
    "api": ("attention", "attention_detail"),
    "context_parallel": ("ContextParallel",),
    "planning": ("Traffic", "bytes_exchanged"),
    "fsdp": ("shard_model",),
    "tensor_parallel": ("TensorParallel", "tensor_parallel_plan"),
}


def __getattr__(name: str) -> Any:
    for module, names in _IMPORTED_ON_FIRST_USE.items():
        if name in names:
            value = getattr(import_module(f"regard.distributed.{module}"), name)
            globals()[name] = value
            return value

    raise AttributeError(f"module 'regard.distributed' has no attribute {name!r}")
