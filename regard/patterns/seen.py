"""Which keys of a grid are seen, as booleans."""

from __future__ import annotations

import torch

from regard.patterns.band import Band
from regard.patterns.grid import Grid
from regard.patterns.ranges import Ranges, covers, union


def visible_in_band(band: Band, grid: Grid) -> torch.Tensor | None:
    """The keys that some query of a grid sees through a band, as `marked`."""
    assert isinstance(grid.q_start, int)
    first, last = grid.q_start + grid.rows.start, grid.q_start + grid.rows.stop - 1
    return marked(union([band.keys(first, last, grid.k_len)]) if len(grid.rows) else (), grid)


def marked(seen: Ranges, grid: Grid) -> torch.Tensor | None:
    """The keys of a grid that lie in the ranges, (1, 1, keys); None for all of them."""
    if covers(seen, grid.keys):
        return None
    found = torch.zeros(1, 1, len(grid.keys), dtype=torch.bool, device=grid.device)
    for keys in seen:
        found[..., max(0, keys.start - grid.keys.start) : max(0, keys.stop - grid.keys.start)] = True
    return found


def four_axes(allowed: torch.Tensor) -> torch.Tensor:
    """Booleans of pairs as (batch or 1, heads or 1, rows, keys)."""
    return allowed if allowed.dim() == 4 else allowed[None, None]
