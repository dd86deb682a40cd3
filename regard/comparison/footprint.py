"""What a model keeps of a text in order to go on: bytes, measured on its state and never derived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from regard.arguments import whole
from regard.errors import ArgumentError
from regard.kinds import shown
from regard.models.state import Writer

FIRST_ID = 4  # those before it are special


@dataclass(frozen=True)
class Footprint:
    """Bytes kept for one text: some for each id that was read and for each that was written, others once.

    >>> Footprint(read=2048.0, written=1024.0, once=0.0).texts_in(1 << 20, length=64)
    5
    """

    read: float
    written: float
    once: float

    def of(self, length: int) -> float:
        """Bytes of a text with so many ids read and as many written."""
        return self.once + whole("length", length, 0) * (self.read + self.written)

    def texts_in(self, cache_bytes: int, length: int) -> int:
        """How many texts of `length` ids, read and written, fit side by side."""
        return int(whole("cache_bytes", cache_bytes, 0) // max(1.0, self.of(length)))


@torch.inference_mode()
def footprint(model: Writer[Any], length: int = 64) -> Footprint:
    """How the state of a model grows: by texts of `length` ids and of twice as many, and by `length` ids written.

    Caches double their room when it runs out, so with a power of two no room is left over. What a window keeps is
    told apart from what grows where it is no longer than `length`.

    Args:
        model: what can `start` and `step`, on the CPU, where the bytes are the same.
        length: a power of two.

    Raises:
        ArgumentError: what does not write, or a length below 1.
    """
    length = whole("length", length, 1)
    if isinstance(model, type) or not all(callable(getattr(model, name, None)) for name in ("start", "step")):
        raise ArgumentError(f"model is {shown(model)}; it needs a model that writes, with start and step")
    state, longer = (model.start(torch.full((1, count), FIRST_ID)) for count in (length, 2 * length))
    begun = state.nbytes
    for _ in range(length):
        model.step(torch.full((1,), FIRST_ID), state)
    read = (longer.nbytes - begun) / length
    return Footprint(read, (state.nbytes - begun) / length, begun - length * read)
