"""Attention over a sequence that several processes share, on PyTorch's own engine: torchrun, meshes, collectives."""

from regard.distributed.api import SharedDetail, attention, attention_detail
from regard.distributed.layout import Layout, joined, part
from regard.distributed.lines import share_lines
from regard.distributed.needs import Traffic, bytes_exchanged
from regard.distributed.style import ContextParallel

__all__ = [
    "ContextParallel",
    "attention",
    "attention_detail",
    "bytes_exchanged",
    "Layout",
    "SharedDetail",
    "Traffic",
    "joined",
    "part",
    "share_lines",
]
