"""Bahdanau's score as it is usually written: one tensor of (q_len, k_len, hidden) numbers."""

from __future__ import annotations

import torch

from regard.bench.case import Attend, Contender
from regard.bench.work import Tensors, Work
from regard.errors import UnsupportedError
from regard.patterns import Full


def _prepare(work: Work, tensors: Tensors) -> Attend:
    learned = tensors.parameters
    if set(learned) != {"query_weight", "key_weight", "energy"} or work.pattern != Full() or work.group > 1:
        raise UnsupportedError(f"it computes full additive attention without groups, not {work}")

    def attend() -> torch.Tensor:
        q, k = tensors.q @ learned["query_weight"].mT, tensors.k @ learned["key_weight"].mT
        pairs = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (batch, heads, q_len, k_len, hidden)
        return torch.einsum("bhqkd,hd->bhqk", pairs, learned["energy"]).softmax(-1) @ tensors.v

    return attend


BROADCAST = Contender("tanh of a broadcast sum", _prepare, judged_at=256)
