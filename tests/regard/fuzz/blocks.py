"""Blocks of a few rows and keys, so that short texts pass the borders of blocks as long ones do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from regard.backends import dropout, fused
from regard.backends.decode import fold, weigh
from regard.backends.scores import blocking
from regard.backends.tiled import backend, execution, grouping

SMALL: tuple[tuple[Any, str, Any], ...] = (
    (backend, "ROW_PATTERNS", 0), (backend, "FORWARD_ROWS", {2: 1.0}), (backend, "BACKWARD_ROWS", {3: 1.0}),
    (grouping, "APART_ROWS", 2), (execution, "COPIED", 64), (blocking, "ROWS", 6),
    (blocking, "PAIRS", 96), (blocking, "ALIGNED", 4), (fused, "ROWS", 3), (fused, "MASK_LIMIT", 64),
    (dropout, "_CHUNK", 24), (weigh, "WORKSPACE", 16), (weigh, "FEWEST", 3), (fold, "SPLIT", 2), (fold, "ROWS", 1),
)  # fmt: skip
NESTED = (*SMALL, (grouping, "RESIDUE_PAIRS", 0))  # and residues of a stride in programs of their own
SIZES = {"shipped": (), "small": SMALL, "nested": NESTED}


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
