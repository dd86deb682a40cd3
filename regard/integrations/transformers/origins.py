"""Patterns counted from another position than the first key: behind left padding, or in a cache that was cut.

Inside torch.compile the first live key of a row is known when the graph runs. Prefixes and spans of keys are moved by
a tensor there. What other patterns and packed texts need is checked by the operation `regard::checked`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from regard.errors import UnsupportedError
from regard.patterns import Both, Full, GlobalTokens, KeyMask, KeySpan, Pattern, Prefix, SameBlock, SameDocument
from regard.patterns.compound import Compound

__all__ = ["Origin", "checked", "counted_from", "joined_in_graph"]

Origin = int | tuple[int, ...]  # the position that counts as 0, of all batch rows or of each
torch.library.define("regard::checked", "(Tensor x, Tensor holds, str sentence) -> Tensor")
_operation: Any = torch.ops.regard


def counted_from(pattern: Pattern, origin: Origin) -> Pattern | None:
    """The pattern that allows the pair (i, j) where `pattern` allows (i - origin, j - origin).

    Keys before the origin are not looked at by a prefix or by global tokens; those that a pattern allows by distance
    alone stay allowed, and are hidden by padding.

    Returns:
        The moved pattern, or None where it cannot be written: by batch row this is known for patterns of distances,
        prefixes, spans of keys, and what `& | ~` make of them.

    >>> from regard.patterns import CausalWindow
    >>> print(counted_from(CausalWindow(4) | Prefix(2), 3))
    causal_window(4) | key_span(3, 5)
    >>> print(counted_from(CausalWindow(4) | Prefix(2), (0, 3)))
    causal_window(4) | key_span((0, 3), (2, 5))
    """
    origins = (origin,) if isinstance(origin, int) else origin
    if not any(origins) or (pattern.period is not None and not any(one % pattern.period for one in origins)):
        return pattern
    if isinstance(pattern, Compound):
        return _of_parts(pattern, origin)
    if isinstance(pattern, Prefix):
        return _span(0, pattern.length, origins)
    if isinstance(pattern, KeySpan) and isinstance(pattern.start, int) and isinstance(pattern.stop, int | None):
        return _span(pattern.start, pattern.stop, origins)
    if len(set(origins)) > 1:
        return None
    if isinstance(pattern, GlobalTokens):
        assert isinstance(pattern.indices, tuple)
        kept = [index + origins[0] for index in pattern.indices if index + origins[0] >= 0]
        return GlobalTokens(kept) if kept else ~Full()
    if isinstance(pattern, SameBlock) and isinstance(pattern.offset, int):
        return SameBlock(pattern.size, pattern.offset + origins[0])
    simpler = pattern.structure()
    return None if simpler is pattern else counted_from(simpler, origin)


def _of_parts(pattern: Compound, origin: Origin) -> Pattern | None:
    parts = [moved for part in pattern.made_of() if (moved := counted_from(part, origin)) is not None]
    if len(parts) < len(pattern.made_of()):
        return None
    following = iter(parts)
    return pattern.mapped(lambda part: next(following))


def _span(start: int, stop: int | None, origins: Sequence[int]) -> Pattern:
    """Keys from start to stop, counted from the origin of each batch row."""
    first = [max(0, start + origin) for origin in origins]
    after = None if stop is None else [max(0, stop + origin) for origin in origins]
    if len(first) == 1:
        return KeySpan(first[0], None if after is None else after[0])
    return KeySpan(first, after)


def joined_in_graph(mask: Pattern, pattern: Pattern, name: str) -> Pattern:
    """The pairs of a mask and of a pattern that is counted from the first live key of each batch row, in a graph.

    Where the mask and the pattern do not fit together, the graph raises UnsupportedError when it runs.

    Args:
        mask: as `traced_mask` makes it: patterns of distances, `SameDocument` and `KeyMask`, joined by `&`.
        pattern: it does not go by distances alone.
        name: what computes it, for the sentences: "LlamaAttention computes prefix(4)".
    """
    parts, moved = [], pattern
    for part in mask.parts if isinstance(mask, Both) else (mask,):
        if isinstance(part, SameDocument):
            ids = part.ids
            part = SameDocument(checked(ids, (ids == ids[..., :1]).all(), packed(name)))
        elif isinstance(part, KeyMask):
            live = part.mask
            origins = live.to(torch.int64).argmax(-1).reshape(-1)
            by_row = _moved_by(pattern, origins)
            if by_row is None:
                part = KeyMask(checked(live, (origins == 0).all(), unmovable(name, "different")))
            else:
                moved = by_row
        parts.append(part)
    joined = moved
    for part in parts:
        joined = joined & part
    return joined


def _moved_by(pattern: Pattern, origins: torch.Tensor) -> Pattern | None:
    """As `counted_from`, by the numbers of a tensor; None where they would have to be known."""
    if pattern.period == 1 or isinstance(pattern, Full):
        return pattern
    if isinstance(pattern, Compound):
        parts = []
        for part in pattern.made_of():
            moved = _moved_by(part, origins)
            if moved is None:
                return None
            parts.append(moved)
        following = iter(parts)
        return pattern.mapped(lambda part: next(following))
    if isinstance(pattern, Prefix):
        return KeySpan(origins, origins + pattern.length)
    if isinstance(pattern, KeySpan) and isinstance(pattern.start, int) and isinstance(pattern.stop, int | None):
        return KeySpan(origins + pattern.start, None if pattern.stop is None else origins + pattern.stop)
    return None


def checked(x: torch.Tensor, holds: torch.Tensor, sentence: str) -> torch.Tensor:
    """The same tensor; the graph raises UnsupportedError with the sentence if `holds` is False when it runs."""
    return _operation.checked(x, holds, sentence)


@torch.library.impl("regard::checked", "CompositeExplicitAutograd")
def _checked(x: torch.Tensor, holds: torch.Tensor, sentence: str) -> torch.Tensor:
    if not bool(holds):
        raise UnsupportedError(sentence)
    return x.clone()


@torch.library.register_fake("regard::checked")
def _like(x: torch.Tensor, holds: torch.Tensor, sentence: str) -> torch.Tensor:
    return torch.empty_like(x)


def packed(name: str) -> str:
    """Why a pattern is not computed for rows of several documents."""
    return (
        f"{name}, which counts positions from the first key of a row, and this row packs several documents; "
        f"give each document a row, or choose a pattern of distances alone"
    )


def unmovable(name: str, origins: str) -> str:
    """Why a pattern is not computed for rows that are padded on the left."""
    return (
        f"{name}, which counts positions from the first key, for rows whose first keys are {origins}, and this "
        f"pattern cannot be moved by row; pad on the right, or give rows of one length"
    )
