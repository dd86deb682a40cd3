"""The patterns that cases measure, each beside its formula as papers and docs write it.

The formulas judge every contender, and FlexAttention computes from them: arithmetic on positions i and j.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.errors import ArgumentError
from regard.patterns import Causal, Full, GlobalTokens, Pattern, RandomBlocks, SlidingWindow, Strided

Formula = Callable[[Any, Any], Any]

BLOCK = 64
FULL, CAUSAL = Full(), Causal()
WINDOW, SMALL_WINDOW = SlidingWindow(512), SlidingWindow(64)
STRIDED = Causal() & Strided(64)
DRAWN = RandomBlocks(3, block=BLOCK, seed=0)
BIG_BIRD = SlidingWindow(192) | GlobalTokens(range(128)) | DRAWN

_FORMULAS: dict[Pattern, Formula] = {
    FULL: lambda i, j: i + j >= 0,
    CAUSAL: lambda i, j: j <= i,
    WINDOW: lambda i, j: abs(i - j) <= 256,
    SMALL_WINDOW: lambda i, j: abs(i - j) <= 32,
    STRIDED: lambda i, j: (j <= i) & ((i - j < 64) | ((i - j) % 64 == 0)),
}


def formula(pattern: Pattern, length: int) -> Formula:
    """May position i look at position j, for integer tensors i and j of a square call of `length`?

    What was drawn by lot has no formula: it is a table of blocks, asked of the pattern.

    Raises:
        ArgumentError: a pattern that no case measures.
    """
    if pattern in _FORMULAS:
        return _FORMULAS[pattern]
    if pattern != BIG_BIRD:
        raise ArgumentError(f"no formula is known for {pattern}; add it to regard.bench.subjects")
    places = torch.arange(0, length, BLOCK)
    table = DRAWN.allows(places[:, None], places)  # (blocks of queries, blocks of keys)
    return lambda i, j: (abs(i - j) <= 96) | (i < 128) | (j < 128) | table[i // BLOCK, j // BLOCK]


def allowed_pairs(pattern: Pattern, rows: list[int], q_len: int, k_len: int) -> NDArray[np.bool_]:
    """Which keys some rows of queries may look at, (rows, k_len); the last query meets the last key.

    >>> allowed_pairs(CAUSAL, [0, 1], 2, 3).astype(int).tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    i = torch.tensor(rows)[:, None] + (k_len - q_len)
    return formula(pattern, k_len)(i, torch.arange(k_len)).expand(len(rows), k_len).numpy()
