"""Text data: readers, splits, tokenisers, batches and scores.

Readers count and report every line they drop, tokenisers lose no text, and every random choice can be repeated. torch
loads with the batches; tokenizers and sacrebleu load when they are called.
"""

from typing import TYPE_CHECKING, Any

from regard_lab.text.lines import read_lines
from regard_lab.text.pairs import Pair, read_pairs, split_by_hash
from regard_lab.text.scores import Scores, score
from regard_lab.text.tokenisers import BEGIN, END, PAD, UNKNOWN, Tokeniser

if TYPE_CHECKING:
    from regard_lab.text.batches import TokenBatches

__all__ = [
    "Pair",
    "read_pairs",
    "read_lines",
    "split_by_hash",
    "Tokeniser",
    "PAD",
    "UNKNOWN",
    "BEGIN",
    "END",
    "TokenBatches",
    "score",
    "Scores",
]


def __getattr__(name: str) -> Any:
    if name == "TokenBatches":
        from regard_lab.text.batches import TokenBatches

        return TokenBatches
    raise AttributeError(f"module 'regard_lab.text' has no attribute {name!r}")
