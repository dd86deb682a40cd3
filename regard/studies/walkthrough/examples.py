"""Worked examples that articles print, as options of `walk`."""

from __future__ import annotations

from typing import Any

from regard.arguments import a_string
from regard.errors import ArgumentError

# "Life is short, eat dessert first", as articles about self-attention from scratch compute it: six words without the
# comma, vectors of 16 numbers, queries and keys of 24, values of 28, the second word; torch.manual_seed(123) before the
# embedding and again before W_query = rand(24, 16), W_key = rand(24, 16), W_value = rand(28, 16).
_EXAMPLES: dict[str, dict[str, Any]] = {
    "life-is-short": {
        "text": "Life is short, eat dessert first", "words": "letters", "word": 2, "heads": 1, "dim": 16,
        "query_dim": 24, "key_dim": 24, "value_dim": 28, "draw": "uniform", "seed": 123, "weights_seed": 123,
        "decimals": 4,
    },
}  # fmt: skip


def example(name: str) -> dict[str, Any]:
    """The options with which `walk` gives the numbers of a worked example.

    Args:
        name: "life-is-short": six words, queries and keys of 24 numbers, values of 28, weights between 0 and 1.

    Returns:
        Keyword arguments of `walk`; change those that should differ.

    Raises:
        ArgumentError: no such example.

    >>> from regard.studies.walkthrough import walk
    >>> steps = walk(**example("life-is-short"))
    >>> steps["ids"].tolist(), [round(weight, 3) for weight in steps["alpha"].tolist()]
    ([0, 4, 5, 2, 1, 3], [0.291, 0.011, 0.098, 0.062, 0.492, 0.046])
    """
    if a_string("example", name) not in _EXAMPLES:
        raise ArgumentError(f"example {name[:40]!r} does not exist; there is {', '.join(_EXAMPLES)}")
    return dict(_EXAMPLES[name])
