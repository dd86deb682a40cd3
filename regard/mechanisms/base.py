"""What every mechanism declares about itself; planner, layers, tests and docs read the same attributes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from regard.patterns import Pattern
from regard.patterns.algebra import Both

OPTIONS = ("bias", "softcap", "scale", "dropout")
STATISTICS = ("log_sum_exp", "entropy", "received", "distance", "weights", "top_keys", "weights_of")


@dataclass(frozen=True)
class Sizes:
    """What a mechanism may size its parameters by."""

    batch: int
    heads: int
    kv_heads: int
    k_len: int


class Mechanism:
    """What turns queries, keys and values into an output; a frozen declaration, compared by value.

    What it may be combined with stands in the attributes below; a call that asks for more is refused before any
    backend is asked. What it learned is handed to each call as `parameters=`; `new_parameters` makes them.
    """

    patterns: ClassVar[tuple[type[Pattern], ...] | None] = None  # which, joined by &; None for every pattern
    patterns_because: ClassVar[str] = ""  # why not others, where it needs saying
    takes: ClassVar[frozenset[str]] = frozenset()  # of OPTIONS
    tells: ClassVar[frozenset[str]] = frozenset()  # of STATISTICS
    own_key_dim: ClassVar[bool] = False  # may keys have another head_dim than queries?
    shares_keys: ClassVar[bool] = False  # are the queries the keys?
    by_key: ClassVar[frozenset[str]] = frozenset()  # parameters whose last axis is the key's position
    has_state: ClassVar[bool] = False  # can it be continued in constant memory?

    def default_scale(self, head_dim: int) -> float:
        """The scale of a call that gives none."""
        return head_dim**-0.5

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """The tensors that every call is handed, by name; the first axis (heads or batch) may also be 1."""
        return {}

    def new_parameters(
        self, heads: int = 1, kv_heads: int | None = None, generator: torch.Generator | None = None
    ) -> nn.ParameterDict:
        """What it learns, at its start, for so many heads; empty for a mechanism that learns nothing."""
        return nn.ParameterDict()

    def reason_against(self, pattern: Pattern, sizes: Sizes, head_dim: int, scale: float) -> str | None:
        """What else is wrong with such a call, in words that end a sentence, or None."""
        return None


def joined(pattern: Pattern) -> tuple[Pattern, ...]:
    """The patterns that a canonical one is the `&` of."""
    return pattern.parts if isinstance(pattern, Both) else (pattern,)


def takes(mechanism: Mechanism, kind: type[Pattern]) -> bool:
    """May the mechanism be combined with this kind of pattern?"""
    return mechanism.patterns is None or kind in mechanism.patterns
