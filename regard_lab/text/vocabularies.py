"""Vocabularies of tokenisers: four special pieces, those reserved for placeholders if any, 256 bytes, and one piece for
each learned merge."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

from regard.errors import ArgumentError, CheckpointError
from regard.packages import needed

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine
    from tokenizers.pre_tokenizers import PreTokenizer

PAD, UNKNOWN, BEGIN, END = range(4)  # the special ids
NEVER_WRITTEN = (PAD, UNKNOWN, BEGIN)  # by a search
SPECIALS = ("<pad>", "<unknown>", "<begin>", "<end>")  # as shown; no text is encoded as one

FORMAT = "regard tokeniser 1"
BATCH_TEXTS = 4_096  # encoded at once
FIRST_CODE_POINT = 0x10000  # from which on a character stands for a whole piece

# Pieces never cross the boundaries of these units: words with inner apostrophes, marks and joiners, runs of
# punctuation, and runs of symbols (emoji with their modifiers). Each includes the space before it.
LETTER = r"[\p{L}\p{N}]"
REST = r"[\p{L}\p{M}\p{N}\x{200C}\x{200D}]*"


# Units of every kind end before such a space: none contains a space after another character.
_AFTER_WORD = re.compile(r"(?<=[\w.,;:!?]) ")


def parts_of(text: str) -> list[str]:
    """A text in parts that can be encoded one by one: their ids, joined, are those of the text.

    Texts share most of their words, so there are far fewer different parts than texts.

    >>> parts_of(" It is, or was,  tired.")
    [' It', ' is,', ' or', ' was,', '  tired.']
    """
    first, *others = _AFTER_WORD.split(text)
    return [first, *(f" {part}" for part in others)]


def _word_units(space: str, apostrophe: str, mark_space: str) -> str:
    word = rf"{space}?{LETTER}{REST}(?:{apostrophe}{LETTER}{REST})*"
    return rf"{word}|{mark_space}?\p{{P}}+|{mark_space}?[^\s\p{{L}}\p{{N}}\p{{P}}]+|\s+"


WORD_UNITS = _word_units(" ", "'", " ")
# The same for texts with typography: a no-break space belongs to the mark after it, as in French questions.
ANY_SPACE = r"[ \x{A0}\x{202F}]"
ANY_APOSTROPHE = "['\u2019\u2018]"
TYPOGRAPHIC_UNITS = _word_units(" ", ANY_APOSTROPHE, ANY_SPACE)
UNITS = {"bpe": WORD_UNITS, "character": r"[\s\S]", "byte": r"[\s\S]"}

# In the JSON of a vocabulary: the keys that each has, and those that are there only if they are True.
KEYS = frozenset(("format", "kind", "specials", "merges"))
FLAGS = ("verbatim", "typographic", "without_invisible")
MOST_RESERVED = 1_000  # ids of a kind of placeholders


def _byte_letters() -> dict[str, int]:
    """The byte of each printable letter that represents one in a piece (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    for number, byte in enumerate(moved):
        letters[chr(256 + number)] = byte
    return letters


BYTE_OF = _byte_letters()


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary of byte-level byte-pair encoding: pairs of pieces to merge, in order of priority.

    A dropped piece has no id: where merges give it, its two parts stand instead. A typographic vocabulary was learned
    from targets with their typography; any other normalises targets. One `without_invisible` was learned from texts
    after `drop_invisible`. One with `reserved` ids, so many for each kind of placeholder, was learned from texts
    without their placeholders.
    """

    kind: str
    merges: tuple[tuple[str, str], ...]
    verbatim: bool = False  # texts are encoded without normalisation
    dropped: frozenset[str] = frozenset()
    typographic: bool = False
    without_invisible: bool = False
    reserved: tuple[tuple[str, int], ...] = ()

    @cached_property
    def reserved_pieces(self) -> tuple[str, ...]:
        """The names of the reserved ids, which follow the special ones."""
        names = []
        for kind, count in self.reserved:
            names += [f"<{kind} {number}>" for number in range(1, count + 1)]
        return tuple(names)

    @cached_property
    def reserved_ids(self) -> dict[str, range]:
        """The reserved ids of each kind of placeholder."""
        ids = {}
        start = len(SPECIALS)
        for kind, count in self.reserved:
            ids[kind] = range(start, start + count)
            start += count
        return ids

    @cached_property
    def first_ordinary(self) -> int:
        """The first id of an ordinary piece."""
        return len(SPECIALS) + len(self.reserved_pieces)

    @cached_property
    def merged(self) -> tuple[str, ...]:
        """The bytes and what merges give, with bytes written as the letters of `BYTE_OF`."""
        # Two merges may give the same piece; a piece that reads like a special one is still an ordinary piece.
        learned = [left + right for left, right in self.merges]
        return tuple(dict.fromkeys([*sorted(BYTE_OF), *learned]))

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """All pieces by id."""
        ordinary = [piece for piece in self.merged if piece not in self.dropped]
        return (*SPECIALS, *self.reserved_pieces, *ordinary)

    @cached_property
    def spelling(self) -> tuple[tuple[int, ...], ...]:
        """The ids of each merged piece: its own, or those of its parts if it is dropped."""
        first = self.first_ordinary
        ids = {piece: i for i, piece in enumerate(self.pieces[first:], start=first)}
        parts = {left + right: (left, right) for left, right in reversed(self.merges)}
        spelled: dict[str, tuple[int, ...]] = {}
        for piece in self.merged:  # parts come before what they are merged to
            if piece in ids:
                spelled[piece] = (ids[piece],)
            else:
                left, right = parts[piece]
                spelled[piece] = spelled[left] + spelled[right]
        return tuple(spelled.values())

    @cached_property
    def raw_pieces(self) -> tuple[bytes | None, ...]:
        """The bytes of each id; None for special and reserved ids."""
        raw_pieces: list[bytes | None] = [None] * self.first_ordinary
        for piece in self.pieces[self.first_ordinary :]:
            raw_pieces.append(bytes(BYTE_OF[letter] for letter in piece))
        return tuple(raw_pieces)

    @classmethod
    def learn(
        cls,
        texts: Sequence[str],
        size: int,
        kind: str,
        *,
        verbatim: bool = False,
        trim: bool = False,
        typographic: bool = False,
        without_invisible: bool = False,
        reserved: Mapping[str, int] | None = None,
    ) -> "Vocabulary":
        """Learn merges from texts until there are `size` pieces or no pair of pieces occurs twice.

        With `trim`, pieces that occur in these texts only as a part of longer ones are dropped.
        """
        if kind not in UNITS:
            raise ArgumentError(f"kind is {kind!r}; give one of {', '.join(map(repr, UNITS))}")
        kinds_and_counts = tuple((reserved or {}).items())
        for_placeholders = sum(count for _, count in kinds_and_counts)
        least = len(SPECIALS) + for_placeholders + len(BYTE_OF)
        if size < least:
            placeholders = f", {for_placeholders} for placeholders" if for_placeholders else ""
            raise ArgumentError(
                f"vocab_size is {size}; give at least {least}, for {len(SPECIALS)} special pieces{placeholders} and "
                f"256 bytes"
            )

        of_bytes = cls(
            kind,
            merges=(),
            verbatim=verbatim,
            typographic=typographic,
            without_invisible=without_invisible,
            reserved=kinds_and_counts,
        )
        if kind == "byte":
            return of_bytes
        units = _byte_units(kind, typographic)
        merges = _learn_merges(texts, size - of_bytes.first_ordinary, sorted(BYTE_OF), units)
        untrimmed = replace(of_bytes, merges=merges)
        if not trim:
            return untrimmed
        return replace(untrimmed, dropped=untrimmed.unused(texts))

    def extended(self, texts: Sequence[str], more: int) -> "Vocabulary":
        """This vocabulary with up to `more` pieces that these texts add; all ids that it has stay as they are.

        The merges are learned over its own pieces, as if its training went on with these texts. Pieces that occur only
        as a part of longer ones are dropped.
        """
        # Merges of pieces are merges of characters, where each piece is written as one.
        letters = {}
        for number, piece in enumerate(self.merged):
            letters[piece] = chr(FIRST_CODE_POINT + number)
        merges_of_letters = _learn_merges(
            self._words_of_letters(texts, letters), len(letters) + more, list(letters.values())
        )
        merges = dict.fromkeys(self.merges)
        for left, right in merges_of_letters:
            merges[self._pieces_of_letters(left), self._pieces_of_letters(right)] = None

        extended = replace(self, merges=tuple(merges))
        new_unused = extended.unused(texts) - set(self.merged)
        return replace(extended, dropped=self.dropped | new_unused)

    def _words_of_letters(self, texts: Iterable[str], letters: dict[str, str]) -> Iterator[str]:
        engine = self.engine()
        for text in texts:
            for unit, _ in engine.pre_tokenizer.pre_tokenize_str(text):
                yield "".join(letters[token.value] for token in engine.model.tokenize(unit))

    def _pieces_of_letters(self, letters: str) -> str:
        return "".join(self.merged[ord(letter) - FIRST_CODE_POINT] for letter in letters)

    def spelled(self, pieces: Sequence[str]) -> list[list[int]]:
        """The ids by which this vocabulary spells pieces of another."""
        model = self.engine().model
        spelled = []
        for piece in pieces:
            ids = [self.spelling[token.id] for token in model.tokenize(piece)]
            spelled.append(list(chain.from_iterable(ids)))
        return spelled

    def unused(self, texts: Sequence[str]) -> frozenset[str]:
        """The merged pieces that are in no encoding of these texts; bytes are always used."""
        engine = self.engine()
        used = set(BYTE_OF)
        parts = list(dict.fromkeys(chain.from_iterable(map(parts_of, texts))))
        for first in range(0, len(parts), BATCH_TEXTS):
            batch = parts[first : first + BATCH_TEXTS]
            for encoding in engine.encode_batch(batch, add_special_tokens=False):
                used.update(encoding.tokens)
        return frozenset(self.merged) - used

    def engine(self) -> "Engine":
        """The Hugging Face tokenizer that applies the merges; its ids count `merged`, dropped pieces included."""
        tokenizers = _tokenizers()
        # Special pieces are not given to the engine, so that no text can be encoded as one.
        ids = {piece: i for i, piece in enumerate(self.merged)}
        # Its cache of words saves a tenth of the time, but is never freed: 20 KB for each engine (tokenizers 0.23).
        model = tokenizers.models.BPE(vocab=ids, merges=list(self.merges), cache_capacity=0)
        engine = tokenizers.Tokenizer(model)
        engine.pre_tokenizer = _byte_units(self.kind, self.typographic)
        return engine

    def to_json(self) -> str:
        """The vocabulary as one line of ASCII JSON."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "kind": self.kind,
            "specials": SPECIALS,
            "merges": self.merges,
        }
        for flag in FLAGS:
            if getattr(self, flag):
                content[flag] = True
        if self.reserved:
            content["reserved"] = self.reserved
        if self.dropped:
            content["dropped"] = [piece for piece in self.merged if piece in self.dropped]
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Vocabulary":
        """Read a vocabulary that `to_json` wrote, checking all its content."""
        try:
            content = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"the tokeniser is not valid JSON ({error}); copy or train it again"
            ) from None
        if not isinstance(content, dict):
            content = {}
        flags = {flag: content.pop(flag, False) for flag in FLAGS}
        dropped = content.pop("dropped", [])
        reserved = content.pop("reserved", [])
        if content.keys() != KEYS or not all(isinstance(value, bool) for value in flags.values()):
            raise _damaged(f"its keys are not {', '.join(sorted(KEYS))}")
        if content["format"] != FORMAT:
            format_read = str(content["format"])[:60]
            raise _damaged(f"its format is {format_read!r}, where {FORMAT!r} is read")
        kind = content["kind"]
        if not isinstance(kind, str) or kind not in UNITS:
            raise _damaged(
                f"its kind is {str(kind)[:60]!r}, where one of {', '.join(UNITS)} is read"
            )
        if content["specials"] != list(SPECIALS):
            raise _damaged(f"its special pieces are not {', '.join(SPECIALS)} with the ids 0 to 3")
        merges = _checked_merges(content["merges"])
        if kind == "byte" and merges:
            raise _damaged("its kind is 'byte' and it has merges")
        return cls(
            kind,
            merges,
            dropped=_checked_dropped(dropped, merges),
            reserved=_checked_reserved(reserved),
            **flags,
        )


def word_units(typographic: bool = False) -> "PreTokenizer":
    """The splitter of texts into words, runs of punctuation and runs of symbols, each with the space before it."""
    if not typographic:
        return _splitter(WORD_UNITS)
    return _splitter(_word_units(ANY_SPACE, ANY_APOSTROPHE, ANY_SPACE))


def _byte_units(kind: str, typographic: bool) -> "PreTokenizer":
    """The splitter of texts into the units of a kind, whose bytes are written as the letters of `BYTE_OF`."""
    units = TYPOGRAPHIC_UNITS if typographic and kind == "bpe" else UNITS[kind]
    splitters = _tokenizers().pre_tokenizers
    to_bytes = splitters.ByteLevel(add_prefix_space=False, use_regex=False)
    return splitters.Sequence([_splitter(units), to_bytes])


def _splitter(units: str) -> "PreTokenizer":
    tokenizers = _tokenizers()
    return tokenizers.pre_tokenizers.Split(tokenizers.Regex(units), "isolated")


def _learn_merges(
    texts: Iterable[str], size: int, alphabet: list[str], units: "PreTokenizer | None" = None
) -> tuple[tuple[str, str], ...]:
    """The merges of up to `size` pieces that occur twice or more in texts, which are split into units first."""
    tokenizers = _tokenizers()
    engine = tokenizers.Tokenizer(tokenizers.models.BPE())
    if units is not None:
        engine.pre_tokenizer = units
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, initial_alphabet=alphabet, show_progress=False
    )
    engine.train_from_iterator(texts, trainer)
    merges = json.loads(engine.to_str())["model"]["merges"]
    return tuple((left, right) for left, right in merges)


def _tokenizers() -> Any:
    with needed("tokenizers", "a tokeniser"):
        return import_module("tokenizers")


def _checked_merges(merges: Any) -> tuple[tuple[str, str], ...]:
    """The merges, checked: each is a new pair of bytes or pieces merged before it."""
    known = set(BYTE_OF)
    checked: dict[tuple[str, str], None] = {}
    for number, merge in enumerate(merges if isinstance(merges, list) else [merges], start=1):
        pair = _known_pair(merge, known)
        if pair is None or pair in checked:
            raise _damaged(
                f"its merge number {number}, {str(merge)[:60]}, is not a new pair of known pieces"
            )
        checked[pair] = None
        known.add("".join(pair))
    return tuple(checked)


def _known_pair(merge: Any, known: set[str]) -> tuple[str, str] | None:
    if not isinstance(merge, list) or len(merge) != 2:
        return None
    left, right = merge
    if not isinstance(left, str) or not isinstance(right, str):
        return None
    if left not in known or right not in known:
        return None
    return left, right


def _checked_dropped(dropped: Any, merges: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """The dropped pieces, checked: each is what a merge gives."""
    learned = {left + right for left, right in merges}
    for piece in dropped if isinstance(dropped, list) else [dropped]:
        if not isinstance(piece, str) or piece not in learned:
            raise _damaged(f"its dropped piece {str(piece)[:60]!r} is not what a merge gives")
    return frozenset(dropped)


def _checked_reserved(reserved: Any) -> tuple[tuple[str, int], ...]:
    """The kinds of placeholders with their numbers of ids, checked: each kind is a word, and stands once."""
    checked: dict[str, int] = {}
    for entry in reserved if isinstance(reserved, list) else [reserved]:
        kind, count = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
        is_kind = isinstance(kind, str) and kind.isidentifier() and kind not in checked
        if not is_kind or type(count) is not int or not 1 <= count <= MOST_RESERVED:
            raise _damaged(f"it reserves {str(entry)[:60]}, which is no kind with a number of ids")
        checked[kind] = count
    return tuple(checked.items())


def _damaged(reason: str) -> CheckpointError:
    return CheckpointError(
        f"the tokeniser is damaged or not one of regard's: {reason}; copy or train it again"
    )
