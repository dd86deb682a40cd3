"""Packages that compute other mechanisms: fast-transformers, performer-pytorch and reformer-pytorch."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch.nn.functional import elu

from regard.errors import UnsupportedError
from regard.mechanisms import LSH
from regard.patterns import Causal, Full
from regard_lab.bench.case import Attend, Contender
from regard_lab.bench.formulas import own_last
from regard_lab.bench.work import Tensors, Work, make_tensors

ADDED = 1e-6  # its eps


def _fast_transformers(work: Work, tensors: Tensors) -> Attend:
    if work.pattern != Causal() or work.group > 1:
        raise UnsupportedError(f"it is measured on causal attention without groups, not on {work}")
    product = import_module("fast_transformers.causal_product").causal_dot_product

    def attend() -> torch.Tensor:
        q, k = elu(tensors.q) + 1, elu(tensors.k) + 1
        whole = torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2)) + ADDED
        return product(q, k, tensors.v) / whole[..., None]

    return attend


FAST_TRANSFORMERS = Contender("fast-transformers", _fast_transformers, package="fast_transformers")


def _performer(work: Work, tensors: Tensors) -> Attend:
    if work.pattern != Causal() or work.group > 1:
        raise UnsupportedError(f"it is measured on causal attention without groups, not on {work}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from distutils, which it imports
        attend = import_module("performer_pytorch.performer_pytorch").causal_linear_attention_noncuda
    return lambda: attend(elu(tensors.q) + 1, elu(tensors.k) + 1, tensors.v)


PERFORMER_PYTORCH = Contender("performer-pytorch", _performer, package="performer_pytorch")


SEED = 3


def _module(work: Work) -> Any:
    mechanism = work.mechanism
    if not isinstance(mechanism, LSH) or work.pattern != Full() or work.k_len % (2 * mechanism.chunk):
        raise UnsupportedError(f"it is measured on full hashed attention over an even number of chunks, not on {work}")
    return import_module("reformer_pytorch").LSHAttention(bucket_size=mechanism.chunk, n_hashes=mechanism.rounds)


def _reformer(work: Work, tensors: Tensors) -> Attend:
    module = _module(work)

    def attend() -> torch.Tensor:
        torch.manual_seed(SEED)  # makes its rotations reproducible
        output, _, _ = module(tensors.q.flatten(0, 1), tensors.v.flatten(0, 1))
        return output.unflatten(0, tensors.q.shape[:2])

    return attend


def _pairs(work: Work, rows: list[int]) -> torch.Tensor:
    """How often reformer-pytorch counts each pair, (batch, heads, rows, k_len)."""
    module, q = _module(work), make_tensors(work).q.detach()
    torch.manual_seed(SEED)
    n, size = work.k_len, module.bucket_size
    buckets = module.hash_vectors(
        n // size, q.flatten(0, 1)
    ).numpy()  # (batch · heads, rounds · n), distinct in every round
    counts = np.zeros((len(buckets), len(rows), n), dtype=np.int64)
    for count, bucket in zip(counts, buckets, strict=True):
        ticket = np.arange(bucket.size)
        chunks = (np.lexsort((ticket % n, bucket)) % n).reshape(-1, size)
        for at, row in enumerate(rows):
            for chunk in np.flatnonzero((chunks == row).any(1)):
                count[at, chunks[chunk]] += 1
                count[at, chunks[chunk - 1]] += 1
    counts = np.stack([own_last(count, rows) for count in counts])
    return torch.from_numpy(counts).unflatten(0, q.shape[:2])


REFORMER = Contender("reformer-pytorch", _reformer, package="reformer_pytorch", own_pattern=_pairs)
