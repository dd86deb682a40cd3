"""Which split a pair of nouns belongs to: a stable hash decides, so a test pair never occurs in training."""

import hashlib
from functools import cache
from typing import Literal, get_args

from regard.text.pronouns.nouns import Noun

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

VALID_SHARE = 0.04
TEST_SHARE = 0.06

# Every reader will try the articles' own sentences, so their nouns must never have been trained on together.
_ARTICLE_PAIR = ("animal", "street")


def split_of_pair(first: Noun, second: Noun) -> Split:
    """The split to which all sentences about two nouns belong, whatever their order.

    Args:
        first: one noun.
        second: the other.

    Returns:
        "train" for about 90 % of all pairs, "valid" for 4 %, "test" for 6 %, the same on every machine.

    Example:
        >>> from regard.text.pronouns.nouns import NOUN_BY_ENGLISH
        >>> split_of_pair(NOUN_BY_ENGLISH["street"], NOUN_BY_ENGLISH["animal"])
        'test'
    """
    return _split_of_names(*sorted((first.english, second.english)))


@cache
def _split_of_names(first: str, second: str) -> Split:
    if (first, second) == _ARTICLE_PAIR:
        return "test"
    digest = hashlib.sha256(f"pronouns {first} {second}".encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    if share < TEST_SHARE:
        return "test"
    return "valid" if share < TEST_SHARE + VALID_SHARE else "train"
