"""Splits a text into words, and finds the word that a user names."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import groupby

from regard.arguments import a_string, count_of, shown, whole
from regard.errors import ArgumentError

LIMIT = 100  # the most words of a walkthrough
UNITS = ("all", "letters")  # the units of a text that are kept: all, or only words of letters and digits


def split_words(text: str, kept: str = "all") -> list[str]:
    """Split a text into words, runs of punctuation and runs of symbols; an apostrophe inside a word belongs to it.

    Args:
        text: any text.
        kept: the units that are kept: "all", or "letters" for words of letters and digits only.

    Raises:
        ArgumentError: another kind of unit.

    >>> split_words("Life is short, eat dessert first")
    ['Life', 'is', 'short', ',', 'eat', 'dessert', 'first']
    >>> split_words("Life is short, eat dessert first", "letters")
    ['Life', 'is', 'short', 'eat', 'dessert', 'first']
    >>> split_words("It didn't cost 3€...")
    ['It', "didn't", 'cost', '3', '€', '...']
    """
    if a_string("words", kept) not in UNITS:
        raise ArgumentError(f"words {shown(kept)} do not exist; there are {', '.join(UNITS)}")
    kinds: list[str] = []
    for place, letter in enumerate(a_string("text", text)):
        kinds.append(_kind(letter, text[place + 1 : place + 2], kinds))
    runs = groupby(zip(text, kinds, strict=True), key=lambda pair: pair[1])
    return [
        "".join(letter for letter, _ in run)
        for kind, run in runs
        if kind == "word" or (kept == "all" and kind != "space")
    ]


def check_words(words: Sequence[str] | Sequence[int], what: str = "text") -> None:
    """Raise an ArgumentError if there is no word, or more than `LIMIT`."""
    if not words:
        raise ArgumentError(f"the {what} has no words; give a sentence, such as 'Life is short, eat dessert first'")
    if len(words) > LIMIT:
        raise ArgumentError(
            f"the {what} has {count_of(len(words), 'words')}; a walkthrough shows every number and "
            f"takes at most {count_of(LIMIT, 'words')}: "
            f"give a sentence"
        )


def find_word(word: int | str | None, words: Sequence[str]) -> int:
    """The index, from 0, of a word given by its number from 1 or by its text; by default that of the second word.

    Raises:
        ArgumentError: the text has no such word.

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
        if isinstance(word, str) and named:  # the word "42" of a text with fewer words
            return named[0]
        raise ArgumentError(f"word {number} does not exist; the text has words 1 to {len(words)}")
    return number - 1


def _kind(letter: str, after: str, kinds: list[str]) -> str:
    """The kind of run that a letter belongs to; marks and joiners belong to the run before them."""
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
