"""One head of a long text without its weights: statistics of rows, the largest links, and a coarse map of the mass.

Rows are computed a block at a time, so memory grows with the length and not with its square. With `rows`, only some
rows are computed, drawn from a seed; then what is summed over rows is an estimate, and is labelled as one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from regard.arguments import a_list, count_of, of_kind, real, whole
from regard.core.tensors import check_tensor
from regard.errors import ArgumentError, ShapeError
from regard.patterns import Full, Pattern
from regard.patterns.grid import Grid
from regard.reprs import brief

SCORES_AT_ONCE = 2**23  # scores of a block of rows
SIDE = 256  # rows and columns of the map
LINKS = 16  # of a row


@brief
@dataclass(frozen=True, eq=False)
class LongHead:
    """What is kept of one head of a long text; n queries and keys, R computed rows, K links of a row.

    Args:
        rows: (R,) the indices of the computed queries, in order.
        entropy: (R,) in nats.
        distance: (R,) the mean distance to the keys, sum w |i - j|.
        largest: (R,) the largest weight.
        first: (R,) the weight of the first key.
        keys: (R, K) the keys with the largest weights, the largest first; -1 where there are fewer.
        weights: (R, K) their weights.
        received: (n,) the sum of the weights that each key receives, over the computed rows.
        map: (P, P) the mean over the rows of each part of the sum of their weights in each part of the keys.
        words: a word for each position; empty for positions alone.
    """

    rows: torch.Tensor
    entropy: torch.Tensor
    distance: torch.Tensor
    largest: torch.Tensor
    first: torch.Tensor
    keys: torch.Tensor
    weights: torch.Tensor
    received: torch.Tensor
    map: torch.Tensor
    words: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        """The number of positions."""
        return len(self.received)

    @property
    def is_sampled(self) -> bool:
        """Whether only some rows were computed."""
        return len(self.rows) < self.length


@torch.no_grad()
def stream_head(
    q: torch.Tensor,
    k: torch.Tensor,
    words: Sequence[str] = (),
    *,
    pattern: Pattern | None = None,
    scale: float | None = None,
    links: int = LINKS,
    rows: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> LongHead:
    """Compute the statistics, links and map of one head, without its n × n weights.

        w = softmax(q kᵀ · scale) over the keys that the pattern allows

    Args:
        q, k: (n, head_dim), the queries and keys of one head after rotation, if it has any.
        words: a word for each position.
        pattern: which query may look at which key; all by default. An empty row has zeros.
        scale: 1 / sqrt(head_dim) by default.
        links: the most keys of a row that are kept.
        rows: compute only so many rows, drawn from `seed`; all by default.
        seed: decides which rows are computed.
        progress: called with the number of rows done since the last call.

    Returns:
        The record, which `show` displays.

    Raises:
        ShapeError: q or k of another shape, or another number of words.
        ArgumentError: numbers out of range, or a pattern that depends on batch or head.

    >>> from regard.patterns import Causal
    >>> head = stream_head(torch.eye(4), torch.eye(4), list("abcd"), pattern=Causal(), links=2)
    >>> head.keys[0].tolist(), head.keys[:, 0].tolist(), head.is_sampled
    ([0, -1], [0, 1, 2, 3], False)
    """
    n, scale, pattern, words = _checked(q, k, words, pattern, scale)
    links = min(whole("links", links, 1), n)
    chosen = _chosen_rows(n, rows, whole("seed", seed, 0))
    q, k = q.detach().float(), k.detach().float()
    side = min(SIDE, n)
    part = torch.arange(n) * side // n  # the part of each position
    mass, received = torch.zeros(side, n), torch.zeros(n, dtype=torch.float64)
    # All that is kept is allocated here: small tensors between those of the blocks would break up the freed memory.
    entropy, distance, largest, first = torch.zeros(4, len(chosen))
    keys = torch.full((len(chosen), links), -1)
    kept = torch.zeros(len(chosen), links)
    done = 0
    for block in chosen.split(max(1, SCORES_AT_ONCE // n)):
        seen = pattern.key_range(int(block[0]), int(block[-1]), n) or range(1)
        weights = _block_weights(q, k, block, seen, pattern, scale)  # (block, len(seen))
        at, here = torch.arange(seen.start, seen.stop), slice(done, done + len(block))
        top = weights.topk(min(links, len(seen)))
        entropy[here] = -torch.xlogy(weights, weights).sum(1) + 0.0
        distance[here] = (weights * (block[:, None] - at).abs()).sum(1)
        largest[here] = top.values[:, 0]
        if seen.start == 0:
            first[here] = weights[:, 0]
        keys[here, : top.indices.shape[1]] = (top.indices + seen.start).masked_fill(top.values == 0, -1)
        kept[here, : top.values.shape[1]] = top.values
        received[seen.start : seen.stop] += weights.sum(0)
        mass[:, seen.start : seen.stop].index_add_(0, part[block], weights)
        done += len(block)
        if progress is not None:
            progress(len(block))
    counts = torch.bincount(part[chosen], minlength=side).clamp(min=1)
    pooled = torch.zeros(side, side).index_add_(1, part, mass) / counts[:, None]
    return LongHead(chosen, entropy, distance, largest, first, keys, kept, received.float(), pooled, words)


def _block_weights(
    q: torch.Tensor, k: torch.Tensor, rows: torch.Tensor, keys: range, pattern: Pattern, scale: float
) -> torch.Tensor:
    """The weights (rows, keys) of some rows, to a range that holds every key of theirs; zeros in an empty row."""
    scores = (q[rows] @ k[keys.start : keys.stop].mT) * scale
    first, last = int(rows[0]), int(rows[-1])
    if pattern.sees_all(first, last, keys):
        return scores.softmax(1)
    neighbours = last - first + 1 == len(rows)
    parts = [range(first, last + 1)] if neighbours else [range(row, row + 1) for row in rows.tolist()]
    grids = (Grid(len(q), len(k), 0, part, keys, q.device) for part in parts)
    allowed = torch.cat([pattern.evaluate(grid) for grid in grids])
    return scores.masked_fill(~allowed, -math.inf).softmax(1).masked_fill(~allowed, 0.0)  # an empty row is NaN before


def _checked(
    q: torch.Tensor, k: torch.Tensor, words: Sequence[str], pattern: Pattern | None, scale: float | None
) -> tuple[int, float, Pattern, tuple[str, ...]]:
    for name, one in (("q", q), ("k", k)):
        check_tensor(name, one)
        if one.dim() != 2 or not one.is_floating_point():
            raise ShapeError(
                f"{name} is {tuple(one.shape)} of {one.dtype}; it needs floating-point numbers (n, head_dim)"
            )
    if q.shape != k.shape or 0 in q.shape:
        raise ShapeError(f"q is {tuple(q.shape)} and k is {tuple(k.shape)}; both must be (n, head_dim) of one text")
    listed = tuple(a_list("words", words, str, "a list of words"))
    if listed and len(listed) != len(q):
        raise ShapeError(f"words has {count_of(len(listed), 'words')}, and q has {count_of(len(q), 'positions')}")
    pattern = Full() if pattern is None else of_kind("pattern", pattern, Pattern, "a Pattern")
    if pattern.varies_by_head or pattern.varies_by_row:
        raise ArgumentError(f"{pattern} differs by head or batch row; give that of this head, pattern.for_head(0)")
    pattern.check(1, 1, len(q), len(q))
    return len(q), 1 / math.sqrt(q.shape[1]) if scale is None else real("scale", scale), pattern, listed


def _chosen_rows(n: int, count: int | None, seed: int) -> torch.Tensor:
    if count is None or whole("rows", count, 1) >= n:
        return torch.arange(n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:count].sort().values
