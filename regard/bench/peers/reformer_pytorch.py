"""lucidrains' reformer-pytorch: LSHAttention with chunks and rounds as many as ours, and rotations of its own.

What it answers is another estimate than ours, so it is judged on the pairs that it keeps: chunks as it cuts them (also
over the borders of buckets, and the first chunk of a round looks back at the last one of another), each pair as often
as it counts it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch

from regard.bench.case import Attend, Contender
from regard.bench.hashed import own_last
from regard.bench.work import Tensors, Work, make_tensors
from regard.errors import UnsupportedError
from regard.mechanisms import LSH
from regard.patterns import Full

SEED = 3


def _module(work: Work) -> Any:
    mechanism = work.mechanism
    if not isinstance(mechanism, LSH) or work.pattern != Full() or work.k_len % (2 * mechanism.chunk):
        raise UnsupportedError(f"it is measured on full hashed attention over an even number of chunks, not on {work}")
    return import_module("reformer_pytorch").LSHAttention(bucket_size=mechanism.chunk, n_hashes=mechanism.rounds)


def _prepare(work: Work, tensors: Tensors) -> Attend:
    module = _module(work)

    def attend() -> torch.Tensor:
        torch.manual_seed(SEED)  # so that the rotations are known
        output, _, _ = module(tensors.q.flatten(0, 1), tensors.v.flatten(0, 1))
        return output.unflatten(0, tensors.q.shape[:2])

    return attend


def _pairs(work: Work, rows: list[int]) -> torch.Tensor:
    """How often it counts each pair, (batch, heads, rows, k_len)."""
    module, q = _module(work), make_tensors(work).q.detach()
    torch.manual_seed(SEED)
    n, size = work.k_len, module.bucket_size
    buckets = module.hash_vectors(n // size, q.flatten(0, 1)).numpy()  # (batch · heads, rounds · n): all apart
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


REFORMER = Contender("reformer-pytorch", _prepare, package="reformer_pytorch", own_pattern=_pairs)
