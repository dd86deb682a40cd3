"""What a step of decoding without calls of modules reads of the sources, and the keys and values that it writes."""

from __future__ import annotations

from typing import Protocol

import torch

from regard.layers import ProjectedContext


class Decoding(Protocol):
    """The sources of a state: projected, with the number of batch rows that read each of them; see `Sources`."""

    contexts: list[ProjectedContext]
    readers: int
    mask: torch.Tensor | None


class FlatTarget:
    """Keys and values of the targets so far: entries (layers, 2, batch, kv_heads, room, head_dim), `length` of them."""

    def __init__(self, entries: torch.Tensor, length: int = 0) -> None:
        self.entries = entries
        self.length = length

    @property
    def room(self) -> int:
        return self.entries.shape[4]

    @property
    def is_fixed(self) -> bool:
        """Whether the entries are read-only: they were made in inference mode, and this thread has left it."""
        return self.entries.is_inference() and not torch.is_inference_mode_enabled()

    def make_room(self) -> None:
        """Make sure that there is a free position."""
        if self.length < self.room:
            return
        larger = [*self.entries.shape]
        larger[4] = 2 * self.room
        entries = self.entries.new_empty(larger)
        entries[:, :, :, :, : self.length] = self.entries
        self.entries = entries

    def reordered(self, index: torch.Tensor) -> FlatTarget:
        """Targets whose batch row i is batch row `index[i]` of these."""
        return FlatTarget(self.entries.index_select(2, index), self.length)
