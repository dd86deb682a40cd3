"""The words of a training text, so that a later sentence can be compared with them.

A sub-word tokeniser can spell any word, so an unknown id never occurs. Whether a model has learned a word is decided by
the words of its training sentences. Scripts that write no spaces between words, such as Chinese and Thai, in which a
tokeniser takes a sentence for one word, count letter by letter.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import NamedTuple

from regard.arguments import a_string, each, of_kind, whole
from regard.errors import ArgumentError, CheckpointError
from regard.reprs import brief
from regard_lab.text.cleaning import UNSPACED, normalise
from regard_lab.text.vocabularies import word_units

FORMAT = "regard seen words 1"

SAMPLED_LINES = 5_000  # whose scripts are looked at
LEAST_UNSPACED_SHARE = 0.1  # of the lines, from which on there is a remark
EXAMPLE_CHARACTERS = 12

MOST_STORED_WORDS = 200_000  # about 2 MB
MOST_NAMED_WORDS = 12  # in one remark
# A text of at least so many words is a guess as a whole if more than this share of them is unknown.
LEAST_WORDS_OF_A_GUESS = 4
UNKNOWN_SHARE_OF_A_GUESS = 0.5
OPENS = frozenset(".!?…:\"'“”„«»‹›([¿¡")  # after one of these the next word may begin a sentence

JOINER = "\u200d"  # between emoji that are one sign
TONES = frozenset("🏻🏼🏽🏾🏿")
REGIONS = frozenset(map(chr, range(0x1F1E6, 0x1F200)))  # two are a flag


def split_unspaced(word: str) -> Iterator[str]:
    """The parts of a word: each letter of a script without spaces, with its marks, and the runs of other letters.

    >>> list(split_unspaced("我有2只cats"))
    ['我', '有', '2', '只', 'cats']
    """
    part = ""
    for letter in word:
        is_mark = unicodedata.category(letter)[0] == "M"
        is_unspaced = UNSPACED.match(letter) or UNSPACED.match(part[:1])
        if part and is_unspaced and not is_mark:
            yield part
            part = ""
        part += letter
    if part:
        yield part


def remark_on_scripts(lines: Iterable[str], kind: str) -> str | None:
    """A sentence about lines without spaces between words, if there are many and the tokeniser joins letters to words.

    >>> remark_on_scripts(["这只动物没有过马路，因为它太累了。", "The animal was tired."], "bpe")[:64]
    '50% of the lines have no spaces between words (这只动物没有过马路，因为 ...)'
    >>> remark_on_scripts(["这只动物没有过马路，因为它太累了。"], "character")
    """
    if kind != "bpe":
        return None
    with_letters = 0
    unspaced = 0
    example = ""
    for line in islice(lines, SAMPLED_LINES):
        letters = sum(map(str.isalpha, line))
        if not letters:
            continue
        with_letters += 1
        if 2 * len(UNSPACED.findall(line)) > letters:
            unspaced += 1
            example = example or line.strip()
    if not unspaced or unspaced < LEAST_UNSPACED_SHARE * with_letters:
        return None
    if len(example) > EXAMPLE_CHARACTERS:
        example = f"{example[:EXAMPLE_CHARACTERS]} ..."
    return (
        f"{unspaced / with_letters:.0%} of the lines have no spaces between words ({example}): a whole sentence counts "
        f"as one word, and pieces may grow to phrases; --tokeniser character (or byte) learns letters instead"
    )


@brief
@dataclass(frozen=True)
class SeenWords:
    """The words of a training text.

    A word is a run of letters and digits with inner apostrophes, as `Tokeniser.words` splits texts; punctuation is no
    word. Scripts that write no spaces between words, such as Chinese, count letter by letter. Symbols and emoji are
    known one by one, and named with what belongs to them, such as the tone of a skin.
    Capitals count, except in the first letter of a word that begins a sentence: "Animals" is known there if the
    training had "animals".

    Args:
        words: the words that are stored, the most frequent ones.
        distinct: how many distinct words the text had.
        symbols: its symbols and emoji, each a character; None where they were not stored, and none counts as unknown.

    >>> seen = SeenWords.of(["The animal didn't cross the street."])
    >>> seen.unknown("Animal crossings: the street didn't cross the Zebra.")
    ('crossings', 'Zebra')
    >>> seen.unknown("The animal 🎉!")
    ('🎉',)
    """

    words: frozenset[str]
    distinct: int
    symbols: frozenset[str] | None = None

    @classmethod
    def of(cls, lines: Iterable[str], most: int = MOST_STORED_WORDS) -> SeenWords:
        """The words of lines; if there are more than `most`, only the most frequent are stored.

        Raises:
            ArgumentError: a single string instead of lines.
        """
        if isinstance(lines, str):
            raise ArgumentError(
                "lines is one string; give a list of lines, such as text.splitlines()"
            )
        most = whole("most", most, 1)
        # A token is what stands between spaces; no word or symbol crosses one.
        tokens: Counter[str] = Counter()
        for line in each("lines", lines, "an iterable of strings"):
            tokens.update(normalise(of_kind("a line", line, str, "a string")).split())

        counts: Counter[str] = Counter()
        symbols: set[str] = set()
        for token, count in tokens.items():
            symbols.update(filter(is_symbol, token))
            for word in _words_of(token):
                if not is_symbol(word.text):
                    counts[word.text] += count
        by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(frozenset(by_frequency[:most]), len(counts), frozenset(symbols))

    def joined(self, other: SeenWords) -> SeenWords:
        """The words of both texts.

        >>> sorted(SeenWords.of(["a bird"]).joined(SeenWords.of(["a cat"])).words)
        ['a', 'bird', 'cat']
        """
        words = self.words | other.words
        unstored = self.distinct - len(self.words) + other.distinct - len(other.words)
        symbols = None
        if self.symbols is not None and other.symbols is not None:
            symbols = self.symbols | other.symbols
        return SeenWords(words, len(words) + unstored, symbols)

    @property
    def complete(self) -> bool:
        """Whether every word of the text is stored; otherwise a rare word of the text may count as unknown."""
        return len(self.words) == self.distinct

    def unknown(self, text: str) -> tuple[str, ...]:
        """The words and symbols of a text that are not stored, each once, in the order of the text.

        Raises:
            ArgumentError: the text is not a string.
        """
        words = _words_of(normalise(a_string("text", text)))
        unknown = [word.text for word in words if not self._has(word)]
        return tuple(dict.fromkeys(unknown))

    def counts(self, text: str) -> tuple[int, int]:
        """How many words and symbols of a text are not stored, and how many it has; repeated ones count each time.

        >>> SeenWords.of(["The animal sang."]).counts("The zebra sang. A zebra!")
        (3, 5)
        """
        words = list(_words_of(normalise(a_string("text", text))))
        if self.symbols is None:
            words = [word for word in words if not is_symbol(word.text)]
        unknown = [word for word in words if not self._has(word)]
        return len(unknown), len(words)

    def _has(self, word: TextWord) -> bool:
        text = word.text
        if is_symbol(text):
            return self.symbols is None or self.symbols.issuperset(filter(is_symbol, text))
        if text in self.words:
            return True
        return word.may_begin and text[0].swapcase() + text[1:] in self.words

    def to_json(self) -> str:
        """The words as JSON, in alphabetical order."""
        content = {"format": FORMAT, "distinct": self.distinct, "words": sorted(self.words)}
        if self.symbols is not None:
            content["symbols"] = sorted(self.symbols)
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
        if not isinstance(content, dict):
            content = {}
        if content.get("format") != FORMAT:
            format_read = str(content.get("format"))[:60]
            raise _damaged(f"its format is {format_read!r}, where {FORMAT!r} is read")

        words = _strings(content.get("words"))
        if words is None or "" in words:
            raise _damaged("it holds no list of words")
        distinct = content.get("distinct")
        if type(distinct) is not int or distinct < len(words):
            raise _damaged(f"it counts {str(distinct)[:40]} distinct words and lists {len(words)}")
        if content.get("symbols") is None:
            return cls(words, distinct)
        symbols = _strings(content["symbols"])
        if symbols is None or any(len(symbol) != 1 for symbol in symbols):
            raise _damaged("its symbols are no list of characters")
        return cls(words, distinct, symbols)


class UnknownWords:
    """Words and symbols that the training of a model did not have, each named once; nothing if it does not store them.

    `output` is what the model makes of a text, such as "translation"; `reads` gives a text as the model reads it, such
    as `Tokeniser.reads`.
    """

    def __init__(
        self, seen: SeenWords | None, output: str, reads: Callable[[str], str] = normalise
    ) -> None:
        self._seen = seen
        self._output = output
        self._reads = reads
        self._named: set[str] = set()

    def remark(self, text: str) -> str | None:
        """A sentence about the words and symbols of a text that were not named before; None if there are none.

        >>> print(UnknownWords(SeenWords.of(["the bird sang"]), "translation").remark("the zebra sang"))
        not in the training of this model: zebra; the translation of such words is a guess
        """
        if self._seen is None:
            return None
        new = [word for word in self._seen.unknown(self._reads(text)) if word not in self._named]
        if not new:
            return None
        self._named.update(new)

        where = "in the training of this model"
        if not self._seen.complete:
            where = f"among the {len(self._seen.words):,} most frequent words of its training"
        names = ", ".join(new[:MOST_NAMED_WORDS])
        if len(new) > MOST_NAMED_WORDS:
            names += f" and {len(new) - MOST_NAMED_WORDS} more"
        guess = f"the {self._output} of such {_kinds(new)} is a guess"
        return f"not {where}: {names}; {self._guess_of_whole(text) or guess}"

    def remark_on_whole(self, text: str) -> str | None:
        """A sentence about a text of which most words are unknown, or that is unknown symbols alone; else None.

        >>> UnknownWords(SeenWords.of(["the bird sang"]), "label").remark_on_whole("zebras run over the hills")
        'not in the training of this model: zebras, run, over, hills; the label is a guess: 4 of 5 words are unknown'
        """
        if self._seen is None:
            return None
        read = self._reads(text)
        unknown, words = self._seen.counts(read)
        only_symbols = unknown == words and all(map(is_symbol, self._seen.unknown(read)))
        if only_symbols or self._guess_of_whole(text) is not None:
            return self.remark(text)
        return None

    def _guess_of_whole(self, text: str) -> str | None:
        """The phrase about a text of which most words are unknown."""
        if self._seen is None:
            return None
        read = self._reads(text)
        unknown, words = self._seen.counts(read)
        if words < LEAST_WORDS_OF_A_GUESS or unknown <= UNKNOWN_SHARE_OF_A_GUESS * words:
            return None
        has_symbol = any(map(is_symbol, self._seen.unknown(read)))
        kinds = "words and symbols" if has_symbol else "words"
        return f"the {self._output} is a guess: {unknown} of {words} {kinds} are unknown"


def _kinds(unknown: Sequence[str]) -> str:
    """What unknown words and symbols are called together."""
    symbols = sum(map(is_symbol, unknown))
    if not symbols:
        return "words"
    return "symbols" if symbols == len(unknown) else "words and symbols"


def is_symbol(text: str) -> bool:
    """Whether a text begins with a symbol or an emoji, or a character that Unicode assigns no meaning.

    >>> [is_symbol(text) for text in ("🎉", "≠", "$", "a", "!", " ")]
    [True, True, True, False, False, False]
    """
    kind = unicodedata.category(text[0])
    return kind[0] == "S" or kind in ("Co", "Cn")


def split_symbols(unit: str) -> Iterator[str]:
    """The symbols of a run, each with the marks, tones and joined symbols that belong to it.

    >>> list(split_symbols("≠🎉👍🏽🇩🇪🇫🇷"))
    ['≠', '🎉', '👍🏽', '🇩🇪', '🇫🇷']
    """
    symbol = ""
    for letter in unit:
        is_flag = letter in REGIONS and len(symbol) == 1 and symbol in REGIONS
        belongs = is_flag or letter in TONES or symbol.endswith(JOINER)
        if is_symbol(letter) and symbol and not belongs:
            yield symbol
            symbol = ""
        if symbol or is_symbol(letter):
            symbol += letter
    if symbol:
        yield symbol


class TextWord(NamedTuple):
    """A word or symbol of a text."""

    text: str
    may_begin: bool  # a sentence


def _words_of(text: str) -> Iterator[TextWord]:
    may_begin = True
    for unit, _ in _splitter().pre_tokenize_str(text):
        if any(map(str.isalnum, unit)):
            for word in split_unspaced(unit.strip()):
                yield TextWord(word, may_begin)
                may_begin = False
            continue
        for symbol in split_symbols(unit.strip()):
            yield TextWord(symbol, may_begin)
        if not OPENS.isdisjoint(unit):
            may_begin = True


_splitter = cache(word_units)


def _strings(value: object) -> frozenset[str] | None:
    """The strings of a list; None for anything else."""
    if not isinstance(value, list):
        return None
    if not all(isinstance(string, str) for string in value):
        return None
    return frozenset(value)


def _damaged(reason: str) -> CheckpointError:
    return CheckpointError(
        f"the list of training words is damaged or not one of regard's: {reason}; copy it again"
    )
