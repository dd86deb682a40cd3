"""Idiap's fast-transformers: its compiled causal product, normalised as its CausalLinearAttention does."""

from __future__ import annotations

from importlib import import_module

import torch
from torch.nn.functional import elu

from regard.bench.case import Attend, Contender
from regard.bench.work import Tensors, Work
from regard.errors import UnsupportedError
from regard.patterns import Causal

ADDED = 1e-6  # its eps


def _prepare(work: Work, tensors: Tensors) -> Attend:
    if work.pattern != Causal() or work.group > 1:
        raise UnsupportedError(f"it is measured on causal attention without groups, not on {work}")
    product = import_module("fast_transformers.causal_product").causal_dot_product

    def attend() -> torch.Tensor:
        q, k = elu(tensors.q) + 1, elu(tensors.k) + 1
        whole = torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2)) + ADDED
        return product(q, k, tensors.v) / whole[..., None]

    return attend


FAST_TRANSFORMERS = Contender("fast-transformers", _prepare, package="fast_transformers")
