"""Text: pairs from files, their parts, tokenisers, batches and scores.

Nothing a user's file holds is silently skipped, every text survives its tokeniser, and every draw can be repeated.
Heavy packages load on first use: torch with the batches, tokenizers and sacrebleu when called.
"""

from typing import TYPE_CHECKING, Any

from regard.text.lines import normalise, read_lines, tidy
from regard.text.pairs import Pair, PairFile, Splits, read_pairs, split_by_hash
from regard.text.scores import Scores, score
from regard.text.tokenisers import BEGIN, END, PAD, UNKNOWN, Tokeniser

if TYPE_CHECKING:
    from regard.text.batches import TokenBatches, pad

__all__ = [
    # read
    "Pair",
    "read_pairs",
    "PairFile",
    "read_lines",
    "tidy",
    "normalise",
    # split
    "split_by_hash",
    "Splits",
    # encode
    "Tokeniser",
    "PAD",
    "UNKNOWN",
    "BEGIN",
    "END",
    # batch
    "TokenBatches",
    "pad",
    # score
    "score",
    "Scores",
]


def __getattr__(name: str) -> Any:
    if name in ("TokenBatches", "pad"):
        from regard.text import batches

        return getattr(batches, name)
    raise AttributeError(f"module 'regard.text' has no attribute {name!r}")
