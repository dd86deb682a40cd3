"""Which pairs hashing keeps, by the definition: buckets are given, chunks are cut, and a query's own key comes last."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from regard.bench.work import Tensors, Work
from regard.mechanisms import LSH
from regard.patterns import Causal

Numbers = NDArray[np.int64]


def hashed_pairs(work: Work, tensors: Tensors, rows: list[int]) -> torch.Tensor:
    """The pairs of regard's LSH, (batch, heads, rows, k_len): booleans. Its rotations are asked of the mechanism.

    Source: Reformer, Kitaev et al. 2020, section 2; causal chunks are counted inside each bucket.
    """
    mechanism = work.mechanism
    assert isinstance(mechanism, LSH)
    buckets = mechanism.bucket(tensors.k).numpy()  # (batch, heads, rounds, k_len)
    causal = work.pattern == Causal()
    kept = [
        [_kept(head, rows, mechanism.chunk, causal) for head in text]
        for text in buckets
    ]  # fmt: skip
    return torch.from_numpy(np.array(kept))


def _kept(buckets: Numbers, rows: list[int], chunk: int, causal: bool) -> NDArray[np.bool_]:
    """(rows, k_len) for one head, whose buckets are (rounds, k_len)."""
    length = buckets.shape[1]
    i, j = np.asarray(rows)[:, None], np.arange(length)
    seen = np.zeros((len(rows), length), dtype=bool)
    for bucket in buckets:
        place = places(bucket)
        if causal:  # counted from the first key of each bucket
            first = np.array([place[bucket == one].min() for one in range(bucket.max() + 1) if (bucket == one).any()])
            place = place - first[np.unique(bucket, return_inverse=True)[1]]
        back = place[i] // chunk - place // chunk
        seen |= (bucket[i] == bucket) & ((back == 0) | (back == 1))
    if length <= chunk:
        seen[:] = True
    if causal:
        seen = (seen | (i < chunk)) & (j <= i)
    return own_last(seen, rows)


def places(bucket: Numbers) -> Numbers:
    """Where each position stands when they are ordered by bucket, and by position inside one.

    >>> places(np.array([1, 0, 1, 0])).tolist()
    [2, 0, 3, 1]
    """
    place = np.empty(len(bucket), dtype=np.int64)
    place[np.lexsort((np.arange(len(bucket)), bucket))] = np.arange(len(bucket))
    return place


def own_last(seen: NDArray, rows: list[int]) -> NDArray:
    """A query sees its own key only where it sees no other; counts stay counts.

    >>> own_last(np.array([[1, 0], [2, 1]]), [0, 1]).tolist()
    [[1, 0], [2, 0]]
    """
    at = np.arange(len(rows)), np.asarray(rows)
    others = seen.copy()
    others[at] = 0
    others[at] = ~others.any(-1)
    return others
