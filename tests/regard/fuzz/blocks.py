"""Blocks of a few rows and keys, so that short texts pass the borders of blocks as long ones do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from regard.backends import composed, decode, dropout
from regard.backends.scores import blocking

SMALL: tuple[tuple[Any, str, Any], ...] = (
    (composed, "ROWS", {3: (1.0, 1.0)}), (composed, "MASK_LIMIT", 64), (blocking, "ROWS", 6), (blocking, "PAIRS", 96),
    (blocking, "ALIGNED", 4), (dropout, "_CHUNK", 24), (decode, "WORKSPACE", 16), (decode, "FEWEST", 3),
    (decode, "SPLIT", 2), (decode, "PART_ROWS", 1),
)  # fmt: skip
SIZES = {"shipped": (), "small": SMALL}


@contextmanager
def cut(blocks: str) -> Iterator[None]:
    """Sizes of blocks as a case has them, put back afterwards."""
    before = [(module, name, getattr(module, name)) for module, name, _ in SIZES[blocks]]
    try:
        for module, name, size in SIZES[blocks]:
            setattr(module, name, size)
        yield
    finally:
        for module, name, size in before:
            setattr(module, name, size)
