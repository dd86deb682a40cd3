"""The words of a training text, so that a later sentence can be compared with them.

A sub-word tokeniser can spell any word, so an unknown id never occurs. Whether a model has learned a word is decided by
the words of its training sentences. Scripts that write no spaces between words, such as Chinese and Thai, in which a
tokeniser takes a sentence for one word, count letter by letter.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

from regard.arguments import a_string, each, of_kind, whole
from regard.errors import ArgumentError, CheckpointError
from regard.reprs import brief
from regard_lab.text.cleaning import normalise
from regard_lab.text.vocabularies import word_units

# Thai, Lao, Tibetan, Burmese, Khmer; kana; Han. Korean has spaces.
_RANGES = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"
    "\u3040-\u30ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
UNSPACED = re.compile(f"[{_RANGES}]")
LOOKED_AT = 5_000  # lines
FEWEST = 0.1  # share of the lines from which on there is a remark
SHOWN = 12  # characters of the example


def split_unspaced(word: str) -> Iterator[str]:
    """The parts of a word: each letter of a script without spaces, with its marks, and the runs of other letters.

    >>> list(split_unspaced("我有2只cats"))
    ['我', '有', '2', '只', 'cats']
    """
    part = ""
    for letter in word:
        joined = unicodedata.category(letter)[0] == "M" or not (
            UNSPACED.match(letter) or UNSPACED.match(part[:1])
        )
        if part and not joined:
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
    looked_at = 0
    unspaced = 0
    example = ""
    for line in islice(lines, LOOKED_AT):
        letters = sum(map(str.isalpha, line))
        looked_at += letters > 0
        if 2 * len(UNSPACED.findall(line)) > letters > 0:
            unspaced = unspaced + 1
            example = example or line.strip()
    if unspaced < FEWEST * looked_at or not unspaced:
        return None
    shown = example if len(example) <= SHOWN else f"{example[:SHOWN]} ..."
    return (
        f"{unspaced / looked_at:.0%} of the lines have no spaces between words ({shown}): a whole sentence counts as "
        f"one word, and pieces may grow to phrases; --tokeniser character (or byte) learns letters instead"
    )


FORMAT = "regard seen words 1"
MOST = 200_000  # words that are stored; about 2 MB
MOST_NAMED = 12  # words in one remark
# A text of at least so many words is a guess as a whole if more than this share of them is unknown.
MOSTLY = 0.5
LEAST_WORDS = 4
OPENS = frozenset(".!?…:\"'“”„«»‹›([¿¡")  # after one of these the next word may begin a sentence


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
    def of(cls, lines: Iterable[str], most: int = MOST) -> SeenWords:
        """The words of lines; if there are more than `most`, only the most frequent are stored.

        Raises:
            ArgumentError: a single string instead of lines.
        """
        if isinstance(lines, str):
            raise ArgumentError(
                "lines is one string; give a list of lines, such as text.splitlines()"
            )
        most = whole("most", most, 1)
        tokens: Counter[str] = Counter()  # between spaces; no word or symbol crosses one
        for line in each("lines", lines, "an iterable of strings"):
            tokens.update(normalise(of_kind("a line", line, str, "a string")).split())
        counts: Counter[str] = Counter()
        for token, count in tokens.items():
            for word, _ in _words(token):
                if not is_symbol(word):
                    counts[word] += count
        kept = sorted(counts, key=lambda word: (-counts[word], word))[:most]
        symbols = frozenset(letter for token in tokens for letter in token if is_symbol(letter))
        return cls(frozenset(kept), len(counts), symbols)

    def joined(self, other: SeenWords) -> SeenWords:
        """The words of both texts.

        >>> sorted(SeenWords.of(["a bird"]).joined(SeenWords.of(["a cat"])).words)
        ['a', 'bird', 'cat']
        """
        words = self.words | other.words
        unstored = sum(one.distinct - len(one.words) for one in (self, other))
        stored = self.symbols is not None and other.symbols is not None
        symbols = self.symbols | other.symbols if stored else None
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
        words = _words(normalise(a_string("text", text)))
        return tuple(dict.fromkeys(word for word, begins in words if not self._has(word, begins)))

    def counts(self, text: str) -> tuple[int, int]:
        """How many words and symbols of a text are not stored, and how many it has; repeated ones count each time.

        >>> SeenWords.of(["The animal sang."]).counts("The zebra sang. A zebra!")
        (3, 5)
        """
        words = list(_words(normalise(a_string("text", text))))
        if self.symbols is None:
            words = [(word, begins) for word, begins in words if not is_symbol(word)]
        return sum(not self._has(word, begins) for word, begins in words), len(words)

    def _has(self, word: str, begins: bool) -> bool:
        if is_symbol(word):
            return self.symbols is None or all(
                letter in self.symbols for letter in word if is_symbol(letter)
            )
        return word in self.words or (begins and word[0].swapcase() + word[1:] in self.words)

    def to_json(self) -> str:
        """The words as JSON, in alphabetical order."""
        content = {"format": FORMAT, "distinct": self.distinct, "words": sorted(self.words)}
        content |= {} if self.symbols is None else {"symbols": sorted(self.symbols)}
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
        words = content.get("words")
        distinct = content.get("distinct")
        if content.get("format") != FORMAT:
            raise _damaged(
                f"its format is {str(content.get('format'))[:60]!r}, where {FORMAT!r} is read"
            )
        if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
            raise _damaged("it holds no list of words")
        if type(distinct) is not int or distinct < len(set(words)):
            raise _damaged(
                f"it counts {str(distinct)[:40]} distinct words and lists {len(set(words))}"
            )
        symbols = content.get("symbols")
        if symbols is None:
            return cls(frozenset(words), distinct)
        if not isinstance(symbols, list) or not all(
            isinstance(symbol, str) and len(symbol) == 1 for symbol in symbols
        ):
            raise _damaged("its symbols are no list of characters")
        return cls(frozenset(words), distinct, frozenset(symbols))


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
        more = f" and {len(new) - MOST_NAMED} more" if len(new) > MOST_NAMED else ""
        guess = self._whole(text) or f"the {self._output} of such {_kinds(new)} is a guess"
        return f"not {where}: {', '.join(new[:MOST_NAMED])}{more}; {guess}"

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
        return self.remark(text) if self._whole(text) is not None or only_symbols else None

    def _whole(self, text: str) -> str | None:
        if self._seen is None:
            return None
        read = self._reads(text)
        unknown, words = self._seen.counts(read)
        if words < LEAST_WORDS or unknown <= MOSTLY * words:
            return None
        kinds = "words and symbols" if any(map(is_symbol, self._seen.unknown(read))) else "words"
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


JOINER = "\u200d"  # between emoji that are one sign
TONES = frozenset("🏻🏼🏽🏾🏿")
REGIONS = frozenset(map(chr, range(0x1F1E6, 0x1F200)))  # two are a flag


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


def _words(text: str) -> Iterator[tuple[str, bool]]:
    """The words and symbols of a text, and whether each may begin a sentence."""
    begins = True
    for unit, _ in _splitter().pre_tokenize_str(text):
        if any(map(str.isalnum, unit)):
            for word in split_unspaced(unit.strip()):
                yield word, begins
                begins = False
            continue
        for symbol in split_symbols(unit.strip()):
            yield symbol, begins
        if not OPENS.isdisjoint(unit):
            begins = True


_splitter = cache(word_units)


def _damaged(reason: str) -> CheckpointError:
    return CheckpointError(
        f"the list of training words is damaged or not one of regard's: {reason}; copy it again"
    )
