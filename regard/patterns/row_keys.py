"""Which keys queries may look at in each batch row, such as those of a text without its padding.

Every batch of texts brings padding of its own. `KeySpan` and `KeyMask` hold it as numbers and booleans, which say
nothing about how a call is computed. What remains without them is the structure of a pattern: patterns of one structure
share a plan, and a backend reads their numbers and booleans in each call, as it reads keys and values.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch

from regard.patterns.band import EVERY_PAIR, Band, tighter


class RowKeys(NamedTuple):
    """The keys that queries may look at, by batch row.

    A query may look at a key in its window that lies between start and stop of the batch row and that the mask allows.

    structure: equal for patterns that differ only in the keys of their batch rows.
    window: a band without start and stop.
    starts: int64 (1,) or (batch,) on the CPU; None for the first key.
    stops: likewise; None for the last key.
    mask: booleans (1 or batch, 1 or heads, 1 or q_len, keys) on the CPU, or (keys,) or (batch, keys) where they depend
        on the key alone; None where every key is allowed.
    of_call: q_len and k_len of the only call that the mask fits, if it has a row for each query; else None.
    """

    structure: Hashable
    window: Band = EVERY_PAIR
    starts: torch.Tensor | None = None
    stops: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    of_call: tuple[int, int] | None = None

    def within(self, band: Band) -> RowKeys:
        """The keys that lie in a band as well."""
        window = Band(band.left, band.right)
        return self.joined(RowKeys(None, window, column(band.start), column(band.stop)))

    def joined(self, other: RowKeys) -> RowKeys:
        """The keys that both allow, with the structure of this one."""
        mask = self.mask
        if mask is None:
            mask = other.mask
        elif other.mask is not None:
            length = min(mask.shape[-1], other.mask.shape[-1])
            mask = mask_of_pairs(mask)[..., :length] & mask_of_pairs(other.mask)[..., :length]
        return RowKeys(
            self.structure,
            self.window & other.window,
            tighter(torch.maximum, self.starts, other.starts),
            tighter(torch.minimum, self.stops, other.stops),
            mask,
            self.of_call or other.of_call,
        )


def mask_of_pairs(mask: torch.Tensor) -> torch.Tensor:
    """A mask of `RowKeys` with all four axes."""
    if mask.dim() == 4:
        return mask
    return mask[None, None, None] if mask.dim() == 1 else mask[:, None, None]


def has_numbers(x: torch.Tensor) -> bool:
    """Whether the numbers of a tensor can be read: it is no wrapper and not on the meta device."""
    return type(x) is torch.Tensor and not x.is_meta


def column(numbers: Any) -> torch.Tensor | None:
    """One number for all batch rows, or one for each, as contiguous int64 on the CPU, (1,) or (batch,); None stays."""
    if numbers is None:
        return None
    if isinstance(numbers, torch.Tensor):
        return numbers.to("cpu", torch.int64).reshape(-1).contiguous()
    return torch.tensor([numbers], dtype=torch.int64, device="cpu")
