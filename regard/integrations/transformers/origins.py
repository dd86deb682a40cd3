"""Patterns that are counted from the first live key of each row, inside of a graph.

Inside torch.compile the first live key of a row is known when the graph runs. Prefixes and spans of keys are moved by
a tensor there. What other patterns and packed texts need is checked by the operation `regard::checked`.
"""

from __future__ import annotations

from typing import Any

import torch

from regard.errors import UnsupportedError
from regard.patterns import KeyMask, Pattern, SameDocument

__all__ = ["checked", "joined_in_graph"]

torch.library.define("regard::checked", "(Tensor x, Tensor holds, str sentence) -> Tensor")
_operation: Any = torch.ops.regard


def joined_in_graph(mask: Pattern, pattern: Pattern, name: str) -> Pattern:
    """The pairs of a mask and of a pattern that is counted from the first live key of each batch row, in a graph.

    Where the mask and the pattern do not fit together, the graph raises UnsupportedError when it runs.

    Args:
        mask: as `traced_mask` makes it: patterns of distances, `SameDocument` and `KeyMask`, joined by `&`.
        pattern: it does not go by distances alone.
        name: what computes it, for the sentences: "LlamaAttention computes prefix(4)".
    """
    parts, moved = [], pattern
    for part in mask.factors:
        if part.documents:
            (ids,) = part.documents
            part = SameDocument(checked(ids, (ids == ids[..., :1]).all(), packed(name)))
        elif isinstance(part, KeyMask):
            live = part.mask
            origins = live.to(torch.int64).argmax(-1).reshape(-1)
            by_row = pattern.moved(origins)
            if by_row is None:
                part = KeyMask(checked(live, (origins == 0).all(), unmovable(name, "different")))
            else:
                moved = by_row
        parts.append(part)
    joined = moved
    for part in parts:
        joined = joined & part
    return joined


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
