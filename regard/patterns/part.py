"""The simple patterns that say their segments themselves; the rest of their structure follows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.patterns.base import Pattern
from regard.patterns.grid import Grid
from regard.patterns.ranges import Ranges, Segments, covers


class Part(Pattern):
    """A pattern whose `segments` is written out; `keys` and `sees_all` are read from it."""

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        raise NotImplementedError(f"{type(self).__name__} does not say its segments")

    def keys(self, first: int, last: int, k_len: int) -> range:
        seen = self.segments(first, last, k_len).some
        return range(seen[0].start, seen[-1].stop) if seen else range(0)

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        return not self.by_length and covers(self.segments(first, last, max(0, keys.stop)).full, keys)


def everything(k_len: int) -> Ranges:
    """All keys there are."""
    return (range(k_len),) if k_len > 0 else ()


def side_by_side(shown: Sequence[torch.Tensor | None], grid: Grid, dim: int) -> torch.Tensor | None:
    """What `visible_keys` tells of each batch row (dim 0) or head (dim 1) as one answer for all of them."""
    if all(one is None for one in shown):
        return None
    every = torch.ones(1, 1, len(grid.keys), dtype=torch.bool, device=grid.device)
    told = [every if one is None else one for one in shown]
    others = max(one.shape[1 - dim] for one in told)
    return torch.cat([one.expand(*((1, others) if dim == 0 else (others, 1)), -1) for one in told], dim=dim)
