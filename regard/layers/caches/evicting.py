"""Which entries of a cache to keep, from the statistics that attention returns: positions for `Cache.keep`.

`received` is the weight that each key received, summed over the queries of a call: `attention_detail(...,
want="received")`, `record_attention(layer, "received")`, or `observe(model, "received")` for models of transformers.
After a first `keep` give `positions=cache.positions` too, so that only entries that are held are chosen.
"""

from __future__ import annotations

import torch

from regard.arguments import count_of, in_memory, shown, whole, whole_or
from regard.errors import ArgumentError, ShapeError


def first_and_last(length: int, count: int, first: int = 4) -> torch.Tensor:
    """Positions (count,) of the first tokens of a text and the last ones before `length`.

    A ring cache with `first_entries=` keeps the same entries by itself.

    Source: Efficient Streaming Language Models with Attention Sinks, Xiao et al. 2023, section 3.2.

    >>> first_and_last(length=100, count=6, first=2).tolist()
    [0, 1, 96, 97, 98, 99]
    """
    length = whole("length", length, 0)
    count = whole("count", count, 0)
    first = min(whole("first", first, 0), count)
    if count >= length:
        return torch.arange(length)
    last = count - first
    return torch.cat([torch.arange(first), torch.arange(length - last, length)])


def heavy_hitters(
    received: torch.Tensor,
    count: int,
    *,
    kv_heads: int,
    recent: int | None = None,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """The keys that received the most weight so far, and the most recent ones: H2O.

    Args:
        received: summed over all queries so far, (batch, heads, length): add up `received` of every call.
        count: entries to keep, of each key/value head.
        kv_heads: key/value heads; the query heads of one are summed.
        recent: how many of them are the last of the text; half of them by default, as in the paper.
        positions: of the entries held, `cache.positions`; all positions by default.

    Returns:
        Positions (batch, kv_heads, count), or all that are held if these are fewer.

    Source: H2O: Heavy-Hitter Oracle, Zhang et al. 2023, section 4.

    >>> heavy_hitters(torch.tensor([[[5.0, 0.1, 3.0, 1.0, 0.5]]]), 3, kv_heads=1, recent=1).tolist()
    [[[0, 2, 4]]]
    """
    count = whole("count", count, 0)
    recent = whole_or("recent", recent, count // 2, 0, count)
    weights = _weights_of_kv_heads(received, kv_heads)
    return _largest_and_last(weights, count, recent, positions)


def observed_keys(
    received: torch.Tensor,
    count: int,
    *,
    kv_heads: int,
    window: int,
    pool: int = 7,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """The keys that the last queries of a prompt look at most, with their neighbours, and these last tokens: SnapKV.

    Args:
        received: that of a call with the last `window` queries alone, (batch, heads, length).
        count: entries to keep, of each key/value head, the window included.
        kv_heads: key/value heads; the query heads of one are summed.
        window: how many queries were summed.
        pool: each key takes the highest weight of so many keys around it; an odd number.
        positions: of the entries held, `cache.positions`; all positions by default.

    Returns:
        Positions (batch, kv_heads, count), or all that are held if these are fewer.

    Source: SnapKV: LLM Knows What You are Looking for Before Generation, Li et al. 2024, section 4.

    >>> received = torch.tensor([[[0.0, 0.1, 0.0, 2.0, 0.0, 0.3, 1.0, 1.0]]])
    >>> observed_keys(received, 5, kv_heads=1, window=2, pool=3).tolist()
    [[[2, 3, 4, 6, 7]]]
    """
    count = whole("count", count, 0)
    window = whole("window", window, 0, count)
    pool = whole("pool", pool, 1)
    if pool % 2 == 0:
        raise ArgumentError(
            f"pool is {pool}; give an odd number, as many keys before a key as after it"
        )
    weights = _weights_of_kv_heads(received, kv_heads)
    before_window = weights.shape[2] - window
    pooled = torch.nn.functional.max_pool1d(
        weights[..., :before_window], pool, stride=1, padding=pool // 2
    )
    weights = torch.cat([pooled, weights[..., before_window:]], -1)
    return _largest_and_last(weights, count, window, positions)


def _weights_of_kv_heads(received: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """The weights of each key/value head, (batch, kv_heads, length)."""
    kv_heads = whole("kv_heads", kv_heads, 1)
    is_tensor = isinstance(received, torch.Tensor)
    if not is_tensor or received.dim() != 3 or not received.is_floating_point():
        raise ShapeError(
            f"received is {shown(received)}; it is the statistic of a call, (batch, heads, length)"
        )
    if received.shape[1] % kv_heads:
        raise ShapeError(
            f"received has {count_of(received.shape[1], 'heads')}, which kv_heads={kv_heads} does not divide"
        )
    return received.detach().unflatten(1, (kv_heads, -1)).sum(2)


def _largest_and_last(
    weights: torch.Tensor, count: int, last: int, positions: torch.Tensor | None
) -> torch.Tensor:
    """The positions of the last entries, and of the others with the largest weights."""
    if positions is None:
        positions = torch.arange(weights.shape[2], device=weights.device)[None, None]
    positions = in_memory("positions", positions).expand(*weights.shape[:2], -1)
    of_held = weights.gather(-1, positions)
    entries = of_held.shape[-1]
    of_held[..., max(0, entries - last) :] = torch.inf
    chosen = of_held.topk(min(count, entries)).indices.sort(-1).values
    return positions.gather(-1, chosen)
