"""The words of a training text, so that a later sentence can be compared with them.

A sub-word tokeniser can spell any word, so an unknown id never occurs. Whether a model has learned a word is decided by
the words of its training sentences.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from regard.arguments import a_string, each, of_kind, whole
from regard.errors import ArgumentError, CheckpointError
from regard.reprs import brief
from regard.text.lines import normalise
from regard.text.scripts import split_unspaced
from regard.text.vocabularies import word_units

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

FORMAT = "regard seen words 1"
MOST = 200_000  # words that are stored; about 2 MB
OPENS = frozenset(".!?…:\"'“”„«»‹›([¿¡")  # after one of these the next word may begin a sentence


@brief
@dataclass(frozen=True)
class SeenWords:
    """The words of a training text.

    A word is a run of letters and digits with inner apostrophes, as `Tokeniser.words` splits texts; punctuation and
    symbols alone are no words. Scripts that write no spaces between words, such as Chinese, count letter by letter.
    Capitals count, except in the first letter of a word that begins a sentence: "Animals" is known there if the
    training had "animals".

    Args:
        words: the words that are stored, the most frequent ones.
        distinct: how many distinct words the text had.

    >>> seen = SeenWords.of(["The animal didn't cross the street."])
    >>> seen.unknown("Animal crossings: the street didn't cross the Zebra.")
    ('crossings', 'Zebra')
    """

    words: frozenset[str]
    distinct: int

    @classmethod
    def of(cls, lines: Iterable[str], most: int = MOST) -> SeenWords:
        """The words of lines; if there are more than `most`, only the most frequent are stored.

        Raises:
            ArgumentError: a single string instead of lines.
        """
        if isinstance(lines, str):
            raise ArgumentError("lines is one string; give a list of lines, such as text.splitlines()")
        most = whole("most", most, 1)
        tokens: Counter[str] = Counter()  # between spaces; no word crosses one
        for line in each("lines", lines, "an iterable of strings"):
            tokens.update(normalise(of_kind("a line", line, str, "a string")).split())
        counts: Counter[str] = Counter()
        for token, count in tokens.items():
            for word, _ in _words(token):
                counts[word] += count
        kept = sorted(counts, key=lambda word: (-counts[word], word))[:most]
        return cls(frozenset(kept), len(counts))

    @property
    def complete(self) -> bool:
        """Whether every word of the text is stored; otherwise a rare word of the text may count as unknown."""
        return len(self.words) == self.distinct

    def unknown(self, text: str) -> tuple[str, ...]:
        """The words of a text that are not stored, each once, in the order of the text.

        Raises:
            ArgumentError: the text is not a string.
        """
        words = _words(normalise(a_string("text", text)))
        return tuple(dict.fromkeys(word for word, begins in words if not self._has(word, begins)))

    def _has(self, word: str, begins: bool) -> bool:
        return word in self.words or (begins and word[0].swapcase() + word[1:] in self.words)

    def to_json(self) -> str:
        """The words as JSON, in alphabetical order."""
        content = {"format": FORMAT, "distinct": self.distinct, "words": sorted(self.words)}
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> SeenWords:
        """Read what `to_json` wrote.

        Raises:
            CheckpointError: a text that `to_json` cannot have written.

        >>> SeenWords.from_json(SeenWords.of(["two words"]).to_json()).words == {"two", "words"}
        True
        """
        try:
            content = json.loads(a_string("text", text))
        except (ValueError, RecursionError) as error:
            raise _damaged(f"it is not valid JSON ({error})") from None
        content = content if isinstance(content, dict) else {}
        words, distinct = content.get("words"), content.get("distinct")
        if content.get("format") != FORMAT:
            raise _damaged(f"its format is {str(content.get('format'))[:60]!r}, where {FORMAT!r} is read")
        if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
            raise _damaged("it holds no list of words")
        if type(distinct) is not int or distinct < len(set(words)):
            raise _damaged(f"it counts {str(distinct)[:40]} distinct words and lists {len(set(words))}")
        return cls(frozenset(words), distinct)


def _words(text: str) -> Iterator[tuple[str, bool]]:
    """The words of a text, and whether each may begin a sentence."""
    begins = True
    for unit, _ in _splitter().pre_tokenize_str(text):
        if _is_word(unit):
            for word in split_unspaced(unit.strip()):
                yield word, begins
                begins = False
        elif not OPENS.isdisjoint(unit):
            begins = True


@cache
def _splitter() -> PreTokenizer:
    return word_units()


def _is_word(unit: str) -> bool:
    return any(map(str.isalnum, unit))


def _damaged(reason: str) -> CheckpointError:
    return CheckpointError(f"the list of training words is damaged or not one of regard's: {reason}; copy it again")
