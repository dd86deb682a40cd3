"""What is common to patterns that differ in the spans of keys of their batch rows only, as padding does."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from regard.patterns.algebra import Both, Either
from regard.patterns.bands import KeySpan
from regard.patterns.base import Pattern


def spans_apart(pattern: Pattern | str | None) -> Hashable | None:
    """The pattern with its `KeySpan`s by batch row reduced to their form; equal for patterns that differ in numbers.

    Returns:
        The pattern itself where no span differs by batch row; None where another part holds a tensor or a function.

    >>> spans_apart(KeySpan([1, 2])) == spans_apart(KeySpan(torch.tensor([0, 5]))) != spans_apart(KeySpan([1, 2], 9))
    True
    """
    if not isinstance(pattern, Pattern):
        return pattern or "full"
    if isinstance(pattern, KeySpan) and pattern.varies_by_row:
        ends = (pattern.start, pattern.stop)
        return "key_span", *(len(end) if isinstance(end, torch.Tensor) else end for end in ends)
    if isinstance(pattern, Both | Either) and pattern.varies_by_row:
        parts = [spans_apart(part) for part in pattern.parts]
        return None if None in parts else (pattern.sign, *parts)
    return pattern if pattern.by_value else None
