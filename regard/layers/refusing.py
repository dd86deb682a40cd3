"""What layers refuse beyond the one call: positions without a common origin, what belongs to one call with a cache."""

from __future__ import annotations

import torch

from regard.errors import UnsupportedError
from regard.patterns import Explicit, Pattern
from regard.patterns.compound import Compound


def refuse_unrelated(pattern: Pattern, q_start: int | torch.Tensor | None, turned: bool) -> None:
    """With a context and without q_start, nothing may compare positions."""
    if q_start is not None:
        return
    if pattern.compares_positions:
        raise UnsupportedError(
            f"pattern {pattern} compares positions, and those of x and of a context have no common origin; give "
            f"q_start to say where x's first vector stands among the context's"
        )
    if turned:
        raise UnsupportedError(
            "Rotary compares positions, and those of x and of a context have no common origin; use a layer "
            "without positions for cross-attention, or give q_start"
        )


def refuse_rows(pattern: Pattern) -> None:
    """With a cache, no mask whose rows are those of one call, and nothing that another length changes."""
    if _holds_mask(pattern):
        raise UnsupportedError(
            f"pattern {pattern} holds a mask whose rows are those of one call, and a cache makes many calls of "
            f"one text; say it by positions (Where, KeySpan, ...)"
        )
    if pattern.by_length:
        raise UnsupportedError(
            f"pattern {pattern} depends on how many keys there are, and with a cache each call has more, so that a "
            f"continued text would differ from the whole at once; draw among the past, RandomBlocks(..., past=True)"
        )


def refuse_moved(q_start: int | torch.Tensor, length: int) -> None:
    """With a cache, x stands right behind what it holds."""
    if isinstance(q_start, torch.Tensor) or q_start != length:
        raise UnsupportedError(
            f"q_start={q_start} with a cache of {length} entries: what is appended stands right behind them, "
            f"so leave q_start out"
        )


def refuse_both(cache: object, context: object) -> None:
    """A cache or a context."""
    if cache is not None and context is not None:
        raise UnsupportedError(
            "a cache keeps x's own keys and a context brings its own; give one of them (project_context keeps a "
            "context's keys)"
        )


def _holds_mask(pattern: Pattern) -> bool:
    if isinstance(pattern, Compound):
        return any(_holds_mask(part) for part in pattern.made_of())
    return isinstance(pattern, Explicit)
