"""Text data: readers, splits, tokenisers, batches and scores.

Readers count and report every line they drop, tokenisers lose no text, and every random choice can be repeated. torch
loads with the batches; tokenizers and sacrebleu load when they are called.
"""

from typing import TYPE_CHECKING, Any

from regard_lab.text.lines import normalise, read_lines, tidy, tidy_target
from regard_lab.text.pairs import Pair, PairFile, Splits, read_pairs, split_by_hash
from regard_lab.text.scores import Scores, score
from regard_lab.text.seen_words import SeenWords
from regard_lab.text.tokenisers import BEGIN, END, PAD, UNKNOWN, Tokeniser

if TYPE_CHECKING:
    from regard_lab.text.batches import TokenBatches, pad

__all__ = [
    # reading
    "Pair",
    "read_pairs",
    "PairFile",
    "read_lines",
    "tidy",
    "tidy_target",
    "normalise",
    # splitting
    "split_by_hash",
    "Splits",
    # encoding
    "Tokeniser",
    "PAD",
    "UNKNOWN",
    "BEGIN",
    "END",
    "SeenWords",
    # batching
    "TokenBatches",
    "pad",
    # scoring
    "score",
    "Scores",
]


def __getattr__(name: str) -> Any:
    if name in ("TokenBatches", "pad"):
        from regard_lab.text import batches

        return getattr(batches, name)
    raise AttributeError(f"module 'regard_lab.text' has no attribute {name!r}")
