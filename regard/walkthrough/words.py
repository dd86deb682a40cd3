"""A text as a person cuts it, and the word that a person means."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import groupby

from regard.arguments import a_string, whole
from regard.errors import ArgumentError

LIMIT = 100  # words that a walk shows


def split_words(text: str) -> list[str]:
    """Words, runs of punctuation and runs of symbols; an apostrophe inside a word belongs to it.

    >>> split_words("Life is short, eat dessert first")
    ['Life', 'is', 'short', ',', 'eat', 'dessert', 'first']
    >>> split_words("It didn't cost 3€...")
    ['It', "didn't", 'cost', '3', '€', '...']
    """
    kinds: list[str] = []
    for place, letter in enumerate(a_string("text", text)):
        kinds.append(_kind(letter, text[place + 1 : place + 2], kinds))
    runs = groupby(zip(text, kinds, strict=True), key=lambda pair: pair[1])
    return ["".join(letter for letter, _ in run) for kind, run in runs if kind != "space"]


def check_words(words: Sequence[str] | Sequence[int], what: str = "text") -> None:
    """Raise an ArgumentError unless there is something to walk through, and not too much."""
    if not words:
        raise ArgumentError(f"the {what} holds no word; give a sentence, such as 'Life is short, eat dessert first'")
    if len(words) > LIMIT:
        raise ArgumentError(
            f"the {what} has {len(words)} words; a walk shows every number, of {LIMIT} words at most: give a sentence"
        )


def find_word(word: int | str | None, words: Sequence[str]) -> int:
    """The place, from 0, of a word that is named by its number, from 1, or by itself; of the second, if none is named.

    Raises:
        ArgumentError: there is none.

    >>> find_word(2, ["Life", "is"]), find_word("is", ["Life", "is"])
    (1, 1)
    """
    if word is None:
        return min(1, len(words) - 1)
    if not isinstance(word, str):
        word = whole("word", word)
    named = [place for place, other in enumerate(words) if other.casefold() == str(word).casefold()]
    if isinstance(word, str) and not word.removeprefix("-").isdecimal():
        if not named:
            raise ArgumentError(f"word {word[:40]!r} is not in the text; its words are numbered 1 to {len(words)}")
        return named[0]
    number = int(word)
    if not 1 <= number <= len(words):
        if isinstance(word, str) and named:  # the text says "42", and is shorter than that
            return named[0]
        raise ArgumentError(f"word {number} was asked for; the text has words 1 to {len(words)}")
    return number - 1


def _kind(letter: str, after: str, kinds: list[str]) -> str:
    """Which run a letter belongs to; marks and joiners stay with what they follow."""
    if letter.isspace():
        return "space"
    category = unicodedata.category(letter)
    if (category[0] == "M" or category == "Cf") and kinds and kinds[-1] != "space":
        return kinds[-1]
    if letter.isalnum() or letter == "_" or category[0] == "M":
        return "word"
    if letter in "'’" and kinds and kinds[-1] == "word" and after.isalnum():
        return "word"
    return "punctuation" if category[0] == "P" else "symbol"
