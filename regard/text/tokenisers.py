"""Text to ids and back without loss, and ids to the words a person sees."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, groupby
from operator import index

from regard.arguments import each, of_kind, shown
from regard.errors import ArgumentError, DataError
from regard.text.lines import LONE_SURROGATES, normalise
from regard.text.vocabularies import BEGIN, END, PAD, SPECIALS, UNKNOWN, Vocabulary, word_units

__all__ = ["Tokeniser", "PAD", "UNKNOWN", "BEGIN", "END", "normalise"]

LINES = re.compile(r"[^\n]*\n|[^\n]+")  # each with its end

BARE_SPACE = "\u2423"  # "␣": how a piece or word of nothing but space is shown


IDS = "whole numbers, as encode gives them"
MOST_PIECES = 1 << 22  # the library takes memory for all of them before it reads a line


class Tokeniser:
    """Byte-level sub-words: every text, emoji included, comes back exactly as `normalise` leaves it.

        decode(encode(text)) == normalise(text)     for sentences
        decode(encode(text)) == text                verbatim, for running text: line ends and all spaces stay

    Three kinds: "bpe" merges bytes into sub-words inside words, "character" into single characters (rare ones
    stay bytes), "byte" merges nothing. Punctuation and symbols are units apart from words; "didn't" is one word.
    (Unigram is not offered: its trainer gives another vocabulary on every run.) Ids 0 to 3 are `PAD, UNKNOWN, BEGIN,
    END`; no text is ever encoded as one of them, "<end>" is six ordinary characters.

    Source: Sennrich, Haddow and Birch 2016 (byte-pair encoding); Radford et al. 2019 (over bytes).

    >>> tokeniser = Tokeniser.train(["The animal didn't cross the street."] * 2, vocab_size=400)
    >>> ids = tokeniser.encode("The  animal didn’t cross the street.")
    >>> tokeniser.decode(ids)
    "The animal didn't cross the street."
    >>> [word for word, _ in tokeniser.words(ids + [END])]
    ['The', 'animal', "didn't", 'cross', 'the', 'street', '.', '<end>']
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """A tokeniser of a known vocabulary; see `train` and `from_json` for the usual ways here."""
        needs = "a vocabulary; Tokeniser.train and Tokeniser.from_json make one"
        self.vocabulary: Vocabulary = of_kind("vocabulary", vocabulary, Vocabulary, needs)
        self._engine = vocabulary.engine()
        self._word_units = word_units()

    @classmethod
    def train(cls, lines: Iterable[str], vocab_size: int, kind: str = "bpe", *, verbatim: bool = False) -> "Tokeniser":
        """Learn a vocabulary from lines of text; the same lines give the same vocabulary, bit for bit.

        Args:
            lines: the text, for a translator both sides; each is normalised first, unless it is taken verbatim.
            vocab_size: the most pieces to learn, at least 260; a small text gives fewer, and "byte" has no more.
            kind: "bpe", "character" or "byte".
            verbatim: encode texts as they stand.

        Raises:
            ArgumentError: an unknown kind, a vocab_size below 260, or one string where lines are needed.
            DataError: no text in the lines.
            MissingPackageError: `tokenizers` is not installed.
        """
        if isinstance(vocab_size, int) and vocab_size > MOST_PIECES:
            raise ArgumentError(f"vocab_size is {vocab_size}; at most {MOST_PIECES} pieces are learned")
        if isinstance(lines, str):
            raise ArgumentError("lines is one string; hand over a list of lines, or text.splitlines()")
        if verbatim:
            prepared = [line for text in lines for line in _whole_lines(text)]
        else:
            prepared = [f" {text}" for line in lines if (text := normalise(line))]
        if not prepared:
            raise DataError("the lines hold no text; a tokeniser learns from at least one line that is not empty")
        return cls(Vocabulary.learn(prepared, vocab_size, kind, verbatim))

    @property
    def vocab_size(self) -> int:
        """The number of ids, specials included."""
        return len(self.vocabulary.pieces)

    @property
    def kind(self) -> str:
        """One of "bpe", "character" and "byte"."""
        return self.vocabulary.kind

    @property
    def verbatim(self) -> bool:
        """Are texts encoded as they stand?"""
        return self.vocabulary.verbatim

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special ids; an empty text has none.

        Raises:
            ArgumentError: not a string.
        """
        if not isinstance(text, str):
            raise ArgumentError(f"a {type(text).__name__} was given to encode; it takes one string at a time")
        if self.verbatim:
            lines = self._engine.encode_batch(_whole_lines(text), add_special_tokens=False)
            return [i for line in lines for i in line.ids]
        # The first word starts with a space as the others do, so that it is the same piece wherever it stands.
        text = normalise(text)
        return self._engine.encode(f" {text}", add_special_tokens=False).ids if text else []

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special ids left out, bytes that are no UTF-8 as U+FFFD.

        Raises:
            ArgumentError: an id outside 0 ... vocab_size - 1.
        """
        joined = b"".join(self._bytes_of(i) or b"" for i in each("ids", ids, IDS))
        text = joined.decode("utf-8", "replace")
        return text if self.verbatim else text.removeprefix(" ")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        r"""What each id alone stands for: its text without the space, "\xf0" for part of a character, "<end>".

        Raises:
            ArgumentError: an id outside 0 ... vocab_size - 1.
        """
        return [
            SPECIALS[int(i)] if (raw := self._bytes_of(i)) is None else _shown(raw, "backslashreplace")
            for i in each("ids", ids, IDS)
        ]

    def words(self, ids: Iterable[int]) -> list[tuple[str, range]]:
        """The words that ids spell, each with the positions of its ids; together they cover every position once.

        A run of punctuation is a word apart ("street." gives "street" and "."), so is a run of symbols and each
        special id; inner apostrophes stay ("didn't"), hyphens part.

        Raises:
            ArgumentError: an id outside 0 ... vocab_size - 1.
        """
        ids = list(each("ids", ids, IDS))
        raws = [self._bytes_of(i) for i in ids]
        words: list[tuple[str, range]] = []
        run_start = 0
        for at, raw in enumerate([*raws, None]):  # the None past the end closes the last run
            if raw is None:
                words += self._words_of_run([one or b"" for one in raws[run_start:at]], run_start)
                words += [(SPECIALS[int(ids[at])], range(at, at + 1))] if at < len(ids) else []
                run_start = at + 1
        return words

    def _words_of_run(self, raws: list[bytes], first: int) -> list[tuple[str, range]]:
        """Words of ordinary ids whose bytes are given: an id belongs to the word that holds its first byte."""
        text = b"".join(raws).decode("utf-8", "surrogateescape")  # a damaged byte is one character
        byte_at = [0, *accumulate(len(letter.encode("utf-8", "surrogateescape")) for letter in text)]
        units = self._word_units.pre_tokenize_str(LONE_SURROGATES.sub("\ufffd", text))
        unit_starts = [byte_at[start] for _, (start, _) in units]
        id_starts = [0, *accumulate(map(len, raws))][:-1]
        words = []
        for _, group in groupby(enumerate(id_starts), key=lambda at: bisect_right(unit_starts, at[1])):
            places = [place for place, _ in group]
            start, stop = places[0], places[-1] + 1
            words.append((_shown(b"".join(raws[start:stop]), "replace"), range(first + start, first + stop)))
        return words

    def _bytes_of(self, i: int) -> bytes | None:
        try:
            i = index(i)
        except TypeError:
            raise ArgumentError(f"ids holds {shown(i)}; it needs {IDS}") from None
        if not 0 <= i < self.vocab_size:
            raise ArgumentError(f"id {i} is not one of this tokeniser's {self.vocab_size} (0 to {self.vocab_size - 1})")
        return self.vocabulary.raw_pieces[i]

    def to_json(self) -> str:
        """The tokeniser as JSON text, in ASCII."""
        return self.vocabulary.to_json()

    @classmethod
    def from_json(cls, text: str) -> "Tokeniser":
        """The tokeniser that `to_json` wrote; nothing in the text is trusted.

        Raises:
            CheckpointError: damaged, or not a tokeniser of regard.
        """
        return cls(Vocabulary.from_json(text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokeniser) and self.vocabulary == other.vocabulary

    def __hash__(self) -> int:
        return hash(self.vocabulary)

    def __repr__(self) -> str:
        return f"Tokeniser(kind={self.kind!r}, vocab_size={self.vocab_size})"


def _whole_lines(text: str) -> list[str]:
    """The lines of a text with their ends; encoded one by one, so that no piece crosses an end."""
    return LINES.findall(LONE_SURROGATES.sub("\ufffd", text))


def _shown(raw: bytes, errors: str) -> str:
    return raw.decode("utf-8", errors).strip(" ") or BARE_SPACE
