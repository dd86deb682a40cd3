"""Training, validation and test parts by a hash of the source: no sentence is ever on two sides."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from regard.errors import ArgumentError, DataError
from regard.kinds import a_list, of_kind
from regard.text.characters import normalise
from regard.text.pairs import Pair


@dataclass(frozen=True)
class Splits:
    """Three parts of the pairs, each in the order of the original."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


def split_by_hash(pairs: Iterable[Pair], valid: float = 0.05, test: float = 0.05) -> Splits:
    """Split by the SHA-256 of each source text, the same on every run and machine.

    The hash, read as a fraction in [0, 1), puts a source below `test` into the test part, below `test + valid`
    into the validation part, else into the training part; pairs that share a source (up to `normalise`) stay
    together. Where a small file would leave a part empty, the sources with the nearest fractions move over.

    Args:
        pairs: what to split.
        valid: share of the sources for validation; 0 leaves that part empty.
        test: share of the sources for the test; 0 leaves that part empty.

    Raises:
        ArgumentError: a share below 0, or nothing left to train on.
        DataError: fewer distinct sources than parts.

    >>> parts = split_by_hash([Pair(f"sentence {i}", "Satz") for i in range(100)])
    >>> len(parts.train), len(parts.valid), len(parts.test)
    (91, 2, 7)
    """
    needs = "a share of the sources, such as 0.05"
    valid, test = of_kind("valid", valid, (int, float), needs), of_kind("test", test, (int, float), needs)
    pairs = a_list("pairs", pairs, Pair, "pairs, as read_pairs gives them")
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise ArgumentError(
            f"the shares are valid={valid} and test={test}; neither may be below 0, and their sum must stay "
            f"below 1 to leave pairs to train on"
        )
    placed = [_fraction(pair.source) for pair in pairs]
    sources = sorted(set(placed))
    parts = 1 + (valid > 0) + (test > 0)
    if len(sources) < parts:
        raise DataError(
            f"{len(pairs)} pairs hold {len(sources)} distinct source sentences, but {parts} parts need at least "
            f"{parts}; add pairs, or give the validation pairs in a file of their own"
        )
    test_count = _clamp(sum(f < test for f in sources), test > 0, len(sources) - 1 - (valid > 0))
    valid_count = _clamp(sum(f < test + valid for f in sources) - test_count, valid > 0, len(sources) - 1 - test_count)
    first_valid, first_train = sources[test_count], sources[test_count + valid_count]
    splits = Splits([], [], [])
    for pair, fraction in zip(pairs, placed, strict=True):
        held_out = splits.test if fraction < first_valid else splits.valid
        (held_out if fraction < first_train else splits.train).append(pair)
    return splits


def _fraction(source: str) -> float:
    digest = hashlib.sha256(normalise(source).encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _clamp(count: int, least: int, most: int) -> int:
    return max(least, min(count, most))
