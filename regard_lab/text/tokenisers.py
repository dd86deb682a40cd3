"""Lossless tokenisers: text to ids and back, and ids to words."""

import copy
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, groupby
from operator import index

from regard.arguments import a_list, a_string, each, kind_of, of_kind, shown, whole
from regard.errors import ArgumentError, DataError
from regard_lab.text.cleaning import LONE_SURROGATES, drop_invisible, normalise, tidy_target
from regard_lab.text.placeholders import (
    RESERVED,
    STAND_IN,
    Placeholder,
    align,
    find_placeholders,
)
from regard_lab.text.vocabularies import (
    BEGIN,
    END,
    PAD,
    UNKNOWN,
    Vocabulary,
    parts_of,
    word_units,
)

__all__ = ["Tokeniser", "PAD", "UNKNOWN", "BEGIN", "END", "normalise"]

LINES = re.compile(r"[^\n]*\n|[^\n]+")  # each with its line end

BARE_SPACE = "\u2423"  # "␣", shown for a piece or word of spaces only
SPACES = " \u00a0\u202f"

IDS = "integers, as encode returns them"
MOST_PIECES = 1 << 22  # the library allocates memory for all of them before it reads a line


class Tokeniser:
    """A byte-level sub-word tokeniser: decoding restores every text exactly, up to the preparation of texts to read.

        decode(encode(text)) == reads(text)         for sentences that a model reads
        decode(encode_target(text)) == text         for sentences that it writes: their typography is kept
        decode(encode(text)) == text                with verbatim=True: line ends and spaces are kept

    `reads(text)` is `normalise(text)` without invisible characters, such as soft hyphens; these are dropped from
    sentences to write too. Tokenisers of earlier versions keep them, in both.

    There are three kinds: "bpe" merges bytes into sub-words within words, "character" into single characters (rare ones
    remain bytes), and "byte" merges nothing. Punctuation and symbols are separated from words; "didn't" is one word.
    There is no Unigram, whose training is not deterministic. Ids 0 to 3 are `PAD, UNKNOWN, BEGIN, END`; no text is
    encoded as one of them, so "<end>" is five ordinary characters.

    One that was trained with `protect=True` has ids for placeholders, such as {0}, numbers, tags and emoji: the first
    number of a text is always the same id. `originals(text)` has what they stand for, by which `decode` restores them
    exactly; `reads(text)` is the text without them.

    Source: Sennrich, Haddow and Birch 2016 (byte-pair encoding); Radford et al. 2019 (over bytes).

    >>> tokeniser = Tokeniser.train(["The animal didn't cross the street."] * 2, vocab_size=400)
    >>> ids = tokeniser.encode("The  animal didn’t cross the street.")
    >>> tokeniser.decode(ids)
    "The animal didn't cross the street."
    >>> [word for word, _ in tokeniser.words(ids + [END])]
    ['The', 'animal', "didn't", 'cross', 'the', 'street', '.', '<end>']
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Make a tokeniser from a vocabulary; `train` and `from_json` are the usual ways."""
        needs = "a vocabulary; Tokeniser.train and Tokeniser.from_json make one"
        self.vocabulary: Vocabulary = of_kind("vocabulary", vocabulary, Vocabulary, needs)
        self._engine = vocabulary.engine()
        self._word_units = word_units(vocabulary.typographic)
        self._ids_with: dict[str, tuple[int, ...]] = {}
        self._kept: dict[str, list[int]] | None = None  # by parts of texts

    @property
    def protects(self) -> bool:
        """Whether placeholders have ids of their own."""
        return bool(self.vocabulary.reserved)

    @cached_property
    def _known(self) -> frozenset[str] | None:
        """The characters that are no placeholders; None for a tokeniser of bytes, to which all are known."""
        return None if self.kind == "byte" else frozenset(self.whole_characters())

    def ids_with(self, character: str) -> tuple[int, ...]:
        """The ids of the pieces that have a character of one byte.

        >>> Tokeniser.train(["a %b %b"] * 2, 300, "byte").ids_with("%")
        (8,)
        """
        if a_string("character", character) not in self._ids_with:
            raw = character.encode()
            pieces = enumerate(self.vocabulary.raw_pieces)
            ids = tuple(i for i, piece in pieces if piece is not None and raw in piece)
            self._ids_with[character] = ids
        return self._ids_with[character]

    def placeholders(self, text: str) -> list[Placeholder]:
        """The placeholders of a text; none if the tokeniser has no ids for them."""
        return find_placeholders(text, self._known) if self.protects else []

    def placeholder_ids(self, placeholders: Sequence[Placeholder]) -> list[int | None]:
        """The id of each placeholder of a source; None for those of a kind that has no more ids, which are spelled."""
        needs = "placeholders, as find_placeholders returns them"
        placeholders = a_list("placeholders", placeholders, Placeholder, needs)
        counts: Counter[str] = Counter()
        ids: list[int | None] = []
        for placeholder in placeholders:
            number = counts[placeholder.kind]
            counts[placeholder.kind] += 1
            reserved = self.vocabulary.reserved_ids.get(placeholder.kind, range(0))
            ids.append(reserved[number] if number < len(reserved) else None)
        return ids

    def originals(self, text: str) -> dict[int, str]:
        """What the ids of placeholders stand for in a source.

        >>> tokeniser = Tokeniser.train(["Copy it to"] * 2, 400, protect=True)
        >>> ids = tokeniser.encode("Copy %s to {name}.")
        >>> tokeniser.decode(ids), tokeniser.decode(ids, tokeniser.originals("Copy %s to {name}."))
        ('Copy  to .', 'Copy %s to {name}.')
        """
        placeholders = self.placeholders(text)
        ids = self.placeholder_ids(placeholders)
        pairs = zip(ids, placeholders, strict=True)
        return {i: placeholder.text for i, placeholder in pairs if i is not None}

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        vocab_size: int,
        kind: str = "bpe",
        *,
        targets: Iterable[str] | None = None,
        verbatim: bool = False,
        trim: bool = False,
        keep_invisible: bool = False,
        protect: bool = False,
    ) -> "Tokeniser":
        """Train a tokeniser on lines of text; the same lines give exactly the same vocabulary.

        Args:
            lines: the training text (for a translator, its sources); normalised first, unless verbatim.
            vocab_size: the most pieces to learn, at least 260; a small text gives fewer, and "byte" always has 260.
            kind: "bpe", "character" or "byte".
            targets: texts that a model learns to write, cleaned by `tidy_target` alone. A tokeniser that is trained
                without them normalises targets too.
            verbatim: encode texts unchanged instead of normalising them.
            trim: drop the pieces that occur in these lines only as a part of longer pieces, which a model would never
                learn; where another text has one, its parts are encoded (Sennrich et al. 2017).
            keep_invisible: encode soft hyphens and zero-width characters, which split words; so did earlier versions.
            protect: give placeholders ids of their own, 60 in all; see `find_placeholders`.

        Raises:
            ArgumentError: an unknown kind, a vocab_size below 260, a single string instead of lines, or targets or
                `protect` of a verbatim tokeniser, which normalises nothing.
            DataError: lines without text.
            MissingPackageError: `tokenizers` is not installed.
        """
        if isinstance(vocab_size, int) and vocab_size > MOST_PIECES:
            raise ArgumentError(
                f"vocab_size is {vocab_size}; at most {MOST_PIECES} pieces are learned"
            )
        for name, texts in (("lines", lines), ("targets", targets)):
            if isinstance(texts, str):
                raise ArgumentError(
                    f"{name} is one string; give a list of lines, such as text.splitlines()"
                )
        if verbatim and targets is not None:
            raise ArgumentError(
                "targets are given and verbatim=True, which normalises no text; give all texts as lines"
            )

        if verbatim and protect:
            raise ArgumentError(
                "protect=True and verbatim=True exclude each other: texts with placeholders are normalised between them"
            )

        without_invisible = not (verbatim or keep_invisible)
        prepared = _prepare(lines, targets or (), verbatim, without_invisible, protect)
        if not prepared:
            raise DataError("the lines have no text; give at least one line that is not empty")
        vocabulary = Vocabulary.learn(
            prepared,
            vocab_size,
            kind,
            verbatim=verbatim,
            trim=trim,
            typographic=targets is not None,
            without_invisible=without_invisible,
            reserved=RESERVED if protect else None,
        )
        return cls(vocabulary)

    def extended(self, lines: Sequence[str], more: int, targets: Sequence[str] = ()) -> "Tokeniser":
        """This tokeniser with up to `more` pieces that occur in other texts; the ids that it has stay as they are.

        Args:
            lines, targets: as for `train`.

        Raises:
            ArgumentError: a tokeniser of bytes, which has no other pieces.

        >>> old = Tokeniser.train(["It is tired."] * 2, 300)
        >>> new = old.extended(["Es ist müde."] * 2, 20)
        >>> new.pieces(range(old.vocab_size)) == old.pieces(range(old.vocab_size)), new.pieces(new.encode("müde"))
        (True, ['müde'])
        """
        if self.kind == "byte":
            raise ArgumentError(
                "a vocabulary of bytes spells every text and has no other pieces; leave them out"
            )
        lines = a_list("lines", lines, str, "lines")
        targets = a_list("targets", targets, str, "lines")
        more = whole("more", more, 1)
        if more > MOST_PIECES:
            raise ArgumentError(f"more is {more}; at most {MOST_PIECES} pieces are learned")

        prepared = _prepare(
            lines, targets, self.verbatim, self.vocabulary.without_invisible, self.protects
        )
        return Tokeniser(self.vocabulary.extended(prepared, more))

    def unknown_characters(self, text: str) -> Counter[str]:
        """How often each character occurs that is whole in no piece, so that two to four bytes spell it."""
        if self.kind == "byte":
            return Counter()
        if self.protects:
            text = _masked(text, self.placeholders(text))
        prepare = self._writes if self.vocabulary.typographic else self._reads
        spelled = prepare(text).replace(STAND_IN, "")
        known = self.whole_characters()
        return Counter(letter for letter in spelled if letter not in known)

    def whole_characters(self) -> set[str]:
        """The characters that are whole in some piece.

        >>> "é" in Tokeniser.train(["Café"] * 2, 300).whole_characters()
        True
        """
        raw_pieces = self.vocabulary.raw_pieces[self.vocabulary.first_ordinary :]
        pieces = [raw.decode("utf-8", "ignore") for raw in raw_pieces if raw is not None]
        return set("".join(pieces))

    @property
    def vocab_size(self) -> int:
        """Number of ids, including the special ones."""
        return len(self.vocabulary.pieces)

    @property
    def kind(self) -> str:
        """One of "bpe", "character" and "byte"."""
        return self.vocabulary.kind

    @property
    def verbatim(self) -> bool:
        """Whether texts are encoded without normalisation."""
        return self.vocabulary.verbatim

    def reads(self, text: str) -> str:
        r"""The text as a model reads it: what `encode` spells, without placeholders.

        >>> Tokeniser.train(["the animal"], 300).reads("the\u2009ani\u00admal’s")
        "the animal's"
        """
        if not self.protects:
            return self._reads(text)
        masked = _masked(text, self.placeholders(text))
        return self._reads(masked).replace(STAND_IN, "")

    def _reads(self, text: str) -> str:
        if self.verbatim:
            return _encodable(text)
        if self.vocabulary.without_invisible:
            text = drop_invisible(text)
        return normalise(text)

    def _writes(self, text: str) -> str:
        """The text as a model learns to write it; marks of the direction remain."""
        text = _encodable(text)
        if self.vocabulary.without_invisible:
            text = drop_invisible(text, directions=False)
        return text

    def encode(self, text: str) -> list[int]:
        """The ids of a text that a model reads, without special ids.

        Raises:
            ArgumentError: the text is not a string.
        """
        if not isinstance(text, str):
            raise ArgumentError(f"encode takes one string, not {kind_of(text)}")
        if self.protects:
            placeholders = self.placeholders(text)
            return self._encode_between(text, placeholders, self.placeholder_ids(placeholders))
        if not self.verbatim:
            return self._encode_prepared(self.reads(text))
        ids: list[int] = []
        for line in self._engine.encode_batch(_whole_lines(text), add_special_tokens=False):
            ids += self._spell(line.ids)
        return ids

    def encode_target(self, text: str, source: str | None = None) -> list[int]:
        r"""The ids of a text that a model writes or has written, without special ids.

        Nothing in it is changed, except that invisible characters are dropped, and that a tokeniser that was trained
        without targets normalises it, as its training did. A placeholder that is also in the `source` has the id that
        it has there; others are spelled.

        Raises:
            ArgumentError: the text is not a string.

        >>> tokeniser = Tokeniser.train(["Who is it?"], 300, targets=["Qui est-ce\u202f?", "C’est l’été."])
        >>> ways = (tokeniser.encode_target, tokeniser.encode)
        >>> [tokeniser.decode(encode("L’été\u202f?")) for encode in ways]
        ['L’été\u202f?', "L'été ?"]
        """
        if self.protects:
            return self._encode_aligned(a_string("text", text), source)
        if not self.vocabulary.typographic:
            return self.encode(text)
        return self._encode_prepared(self._writes(text))

    def _encode_aligned(self, text: str, source: str | None) -> list[int]:
        sources = [] if source is None else self.placeholders(source)
        source_ids = self.placeholder_ids(sources)
        placeholders = self.placeholders(text)
        ids = [None if i is None else source_ids[i] for i in align(sources, placeholders)]
        return self._encode_between(text, placeholders, ids, is_target=True)

    def _encode_between(
        self,
        text: str,
        placeholders: Sequence[Placeholder],
        ids: Sequence[int | None],
        is_target: bool = False,
    ) -> list[int]:
        """The ids of a text in which placeholders with an id are that id, and the others are spelled."""
        with_ids = [
            placeholder for placeholder, i in zip(placeholders, ids, strict=True) if i is not None
        ]
        prepare = self._writes if is_target and self.vocabulary.typographic else self._reads
        prepared = prepare(_masked(text, with_ids))
        if not prepared:
            return []
        encoded: list[int] = []
        reserved = (i for i in ids if i is not None)
        for number, part in enumerate(f" {prepared}".split(STAND_IN)):
            if number:
                encoded.append(next(reserved))
            if part:
                encoded += self._encode_spaced(part)
        return encoded

    def _encode_prepared(self, text: str) -> list[int]:
        if not text:
            return []
        # A space before the first word gives it the same pieces as anywhere else in a text.
        return self._encode_spaced(f" {text}")

    def _encode_spaced(self, text: str) -> list[int]:
        if self._kept is None:
            return self._spell(self._engine.encode(text, add_special_tokens=False).ids)
        ids: list[int] = []
        for part in parts_of(text):
            known = self._kept.get(part)
            if known is None:
                known = self._spell(self._engine.encode(part, add_special_tokens=False).ids)
                self._kept[part] = known
            ids += known
        return ids

    def keeping_words(self) -> "Tokeniser":
        """The same tokeniser, which keeps the ids of each word that it encodes; for many texts with the same words.

        >>> tokeniser = Tokeniser.train(["The animal didn't cross the street."] * 2, vocab_size=400)
        >>> tokeniser.keeping_words().encode("The street") == tokeniser.encode("The street")
        True
        """
        same = copy.copy(self)
        same._kept = {}
        return same

    def _spell(self, merged_ids: Iterable[int]) -> list[int]:
        """The ids of merged pieces, which the engine counts without the special ones."""
        spelling = self.vocabulary.spelling
        return list(chain.from_iterable(spelling[merged_id] for merged_id in merged_ids))

    def decode(self, ids: Iterable[int], originals: Mapping[int, str] | None = None) -> str:
        """The text of ids, without special ids; bytes that are not UTF-8 become U+FFFD.

        `originals`, of the source of a translation, has the texts of placeholders, which are left out without it.

        Raises:
            ArgumentError: an id outside 0 ... vocab_size - 1.
        """
        originals = {} if originals is None else originals
        of_kind("originals", originals, Mapping, "a dict of ids with their texts, or None")
        text = ""
        run = b""  # of ordinary pieces, up to the next placeholder
        for i in each("ids", ids, IDS):
            raw = self._bytes_of(i)
            if raw is not None:
                run += raw
            elif i in originals:
                original = a_string("an original", originals[i])
                text += run.decode("utf-8", "replace") + original
                run = b""
        text += run.decode("utf-8", "replace")
        return text if self.verbatim else text.removeprefix(" ")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        r"""The text of each id by itself, without its space; "\xf0" for part of a character, "<end>" for END.

        Raises:
            ArgumentError: an id outside 0 ... vocab_size - 1.
        """
        pieces = []
        for i in each("ids", ids, IDS):
            raw = self._bytes_of(i)
            name = self.vocabulary.pieces[int(i)]
            pieces.append(name if raw is None else _shown(raw, "backslashreplace"))
        return pieces

    def words(self, ids: Iterable[int]) -> list[tuple[str, range]]:
        """The words of ids, each with the positions of its ids; together they cover every position once.

        A run of punctuation, a run of symbols and each special id is a word ("street." gives "street" and "."). A word
        keeps inner apostrophes ("didn't") and is split at hyphens.

        Raises:
            ArgumentError: an id outside 0 ... vocab_size - 1.
        """
        words: list[tuple[str, range]] = []
        run: list[bytes] = []  # of ordinary ids, up to the next special one
        position = 0
        for position, i in enumerate(each("ids", ids, IDS), start=1):
            raw = self._bytes_of(i)
            if raw is not None:
                run.append(raw)
                continue
            words += self._words_of_run(run, position - 1 - len(run))
            words.append((self.vocabulary.pieces[int(i)], range(position - 1, position)))
            run = []
        words += self._words_of_run(run, position - len(run))
        return words

    def _words_of_run(self, raws: list[bytes], first: int) -> list[tuple[str, range]]:
        """Words of ordinary ids with these bytes; an id belongs to the word that contains its first byte.

        Args:
            raws: the bytes of each id.
            first: the position of the first id.
        """
        text = b"".join(raws).decode("utf-8", "surrogateescape")  # an invalid byte is one character
        letter_lengths = [len(letter.encode("utf-8", "surrogateescape")) for letter in text]
        letter_starts = [0, *accumulate(letter_lengths)]
        units = self._word_units.pre_tokenize_str(_encodable(text))
        unit_starts = [letter_starts[start] for _, (start, _) in units]

        words = []
        id_starts = list(accumulate(map(len, raws), initial=0))[:-1]
        unit_of_id = [bisect_right(unit_starts, start) for start in id_starts]
        start = 0
        for _, ids_of_unit in groupby(unit_of_id):
            stop = start + len(list(ids_of_unit))
            text_of_word = _shown(b"".join(raws[start:stop]), "replace")
            words.append((text_of_word, range(first + start, first + stop)))
            start = stop
        return words

    def _bytes_of(self, i: int) -> bytes | None:
        try:
            i = index(i)
        except TypeError:
            raise ArgumentError(f"ids contains {shown(i)}; give {IDS}") from None
        if not 0 <= i < self.vocab_size:
            raise ArgumentError(
                f"id {i} is outside this tokeniser's vocabulary, 0 to {self.vocab_size - 1}"
            )
        return self.vocabulary.raw_pieces[i]

    def to_json(self) -> str:
        """The tokeniser as ASCII JSON."""
        return self.vocabulary.to_json()

    @classmethod
    def from_json(cls, text: str) -> "Tokeniser":
        """Read a tokeniser that `to_json` wrote, checking all its content.

        Raises:
            CheckpointError: the text is damaged, or not a tokeniser of regard.
        """
        return cls(Vocabulary.from_json(text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokeniser) and self.vocabulary == other.vocabulary

    def __hash__(self) -> int:
        return hash(self.vocabulary)

    def __repr__(self) -> str:
        return f"Tokeniser(kind={self.kind!r}, vocab_size={self.vocab_size})"


def _masked(text: str, placeholders: Sequence[Placeholder]) -> str:
    """The text with a stand-in for each placeholder."""
    parts = []
    start = 0
    for placeholder in placeholders:
        parts.append(_without_stand_ins(text[start : placeholder.start]))
        start = placeholder.stop
    parts.append(_without_stand_ins(text[start:]))
    return STAND_IN.join(parts)


def _without_stand_ins(text: str) -> str:
    return text.replace(STAND_IN, "\ufffd")


def _prepare(
    lines: Iterable[str],
    targets: Iterable[str],
    verbatim: bool,
    without_invisible: bool,
    protect: bool,
) -> list[str]:
    """Texts as vocabularies are learned from them: a space before each, as before a word inside a text.

    With `protect`, a text is divided at its placeholders, which are left out.
    """
    if verbatim:
        return list(chain.from_iterable(map(_whole_lines, lines)))
    if protect:
        lines = [_masked(line, find_placeholders(line)) for line in lines]
        targets = [_masked(line, find_placeholders(line)) for line in targets]
    prepared = []
    for line in lines:
        visible = drop_invisible(line) if without_invisible else line
        prepared.append(normalise(visible))
    for line in targets:
        visible = drop_invisible(line, directions=False) if without_invisible else line
        prepared.append(_encodable(tidy_target(visible)))
    prepared = [f" {text}" for text in prepared if text]
    if not protect:
        return prepared
    parts = chain.from_iterable(text.split(STAND_IN) for text in prepared)
    return [part for part in parts if part.strip()]


def _whole_lines(text: str) -> list[str]:
    """The lines of a text with their line ends; they are encoded separately, so no piece crosses a line end."""
    return LINES.findall(_encodable(text))


def _encodable(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which UTF-8 cannot encode."""
    return LONE_SURROGATES.sub("\ufffd", a_string("text", text))


def _shown(raw: bytes, errors: str) -> str:
    return raw.decode("utf-8", errors).strip(SPACES) or BARE_SPACE
