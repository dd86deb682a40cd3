"""Where keys stand in the sorted order of every round, and a number that tells which of them see each other."""

from __future__ import annotations

import torch

from regard.mechanisms import LSH


def sort_keys(
    mechanism: LSH, k: torch.Tensor, live: torch.Tensor | None, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys by (bucket, position), hidden ones last, and a code for each: i and j see each other's chunk if `meets`.

    Args:
        mechanism: the declaration.
        k: (batch, heads, keys, head_dim).
        live: None, or which keys are not hidden, (batch or 1, keys).
        causal: count chunks inside each bucket.

    Returns:
        order: the keys in each round's order, (batch, heads, rounds, keys).
        codes: by position, (batch, heads, rounds, keys).
    """
    bucket, keys = mechanism.bucket(k), k.shape[2]
    if live is not None:
        bucket = bucket.masked_fill(~live[:, None, None], mechanism.bucket_count)
    bucket, order = bucket.sort(stable=True)
    place = torch.arange(keys, device=k.device).expand_as(bucket)
    rank = place - torch.searchsorted(bucket, bucket) if causal else place
    stride = -(-keys // mechanism.chunk) + 1  # more than the chunks there are: no two buckets have neighbouring codes
    codes = bucket * stride + rank // mechanism.chunk
    codes = codes.where(bucket < mechanism.bucket_count, -2 - 2 * place)  # hidden keys are two apart from everyone
    codes = torch.empty_like(codes).scatter_(-1, order, codes)
    most = max((mechanism.bucket_count + 1) * stride, 2 * keys + 8)
    small = next(dtype for dtype in (torch.int16, torch.int32, torch.int64) if most < torch.iinfo(dtype).max)
    return order, codes.to(small)


def meets(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Is the key in the query's own chunk of its bucket, or in the one before? (..., queries, keys) of their codes."""
    return (query[..., None] - key[..., None, :]).bitwise_and_(-2).logical_not()  # the difference is 0 or 1
