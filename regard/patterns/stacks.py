"""What a stack of layers with one pattern learns from: the positions seen, and those that they saw below."""

from __future__ import annotations

import torch

from regard.errors import ArgumentError
from regard.patterns.base import Pattern


def learned(pattern: Pattern, q_len: int, k_len: int, layers: int) -> torch.Tensor:
    """From which positions each of the last queries can learn through layers that all have this pattern.

    Every layer hands on what stood at the query's own position. Heads of a layer feed all heads of the next, so a
    pair counts that any head allows; a pattern that differs by batch row is taken for the first one.

    Args:
        pattern: what each layer allows among all `k_len` positions.
        q_len: rows of the answer, the last positions; at most `k_len`.
        k_len: positions of the text.
        layers: 1 or more.

    Returns:
        Booleans (q_len, k_len).

    Raises:
        ArgumentError: more queries than positions, or no layer.

    >>> from regard.patterns import CausalWindow
    >>> learned(CausalWindow(2), 1, 5, layers=3).int().tolist()
    [[0, 1, 1, 1, 1]]
    """
    if q_len > k_len:
        raise ArgumentError(f"{q_len} queries of a text of {k_len} positions; a stack has a position for every query")
    if layers < 1:
        raise ArgumentError(f"a stack of {layers} layers; it has 1 or more")
    seen = pattern.dense(k_len, k_len)
    seen = seen[0].any(0) if seen.dim() == 4 else seen
    one = (seen | torch.eye(k_len, dtype=torch.bool, device=seen.device)).float()
    found = torch.eye(k_len, device=seen.device)[k_len - q_len :]
    for _ in range(min(layers, k_len)):  # no path between k_len positions needs more steps
        further = (found @ one > 0).float()
        if torch.equal(further, found):
            break
        found = further
    return found > 0
