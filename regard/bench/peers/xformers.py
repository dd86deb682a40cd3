"""xFormers' memory-efficient attention, on CUDA."""

from __future__ import annotations

from importlib import import_module

import torch

from regard.bench.case import Attend, Contender
from regard.bench.work import Tensors, Work
from regard.errors import UnsupportedError
from regard.patterns import Causal, Full


def _prepare(work: Work, tensors: Tensors) -> Attend:
    if work.pattern not in (Full(), Causal()) or work.q_len != work.k_len or work.group > 1:
        raise UnsupportedError(f"it computes full and square causal attention without groups, not {work}")
    ops = import_module("xformers.ops")
    bias = ops.LowerTriangularMask() if work.pattern == Causal() else None
    q, k, v = (x.transpose(1, 2) for x in (tensors.q, tensors.k, tensors.v))

    def attend() -> torch.Tensor:
        return ops.memory_efficient_attention(q, k, v, attn_bias=bias).transpose(1, 2)

    return attend


XFORMERS = Contender("xFormers", _prepare, package="xformers", device="cuda")
