"""Vocabularies of tokenisers: four special pieces, 256 bytes, and one piece for each learned merge."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.errors import ArgumentError, CheckpointError
from regard.packages import needed

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine
    from tokenizers.pre_tokenizers import PreTokenizer

PAD, UNKNOWN, BEGIN, END = range(4)
SPECIALS = ("<pad>", "<unknown>", "<begin>", "<end>")  # as shown; no text is encoded as one

FORMAT = "regard tokeniser 1"
BATCH = 4_096  # texts encoded at once

# Pieces never cross the boundaries of these units: words with inner apostrophes, marks and joiners, runs of
# punctuation, and runs of symbols (emoji with their modifiers). Each includes the space before it.
LETTER = r"[\p{L}\p{N}]"
REST = r"[\p{L}\p{M}\p{N}\x{200C}\x{200D}]*"


def _word_units(space: str, apostrophe: str, mark_space: str) -> str:
    word = rf"{space}?{LETTER}{REST}(?:{apostrophe}{LETTER}{REST})*"
    return rf"{word}|{mark_space}?\p{{P}}+|{mark_space}?[^\s\p{{L}}\p{{N}}\p{{P}}]+|\s+"


WORD_UNITS = _word_units(" ", "'", " ")
# The same for texts with typography: a no-break space belongs to the mark after it, as in French questions.
ANY_SPACE = r"[ \x{A0}\x{202F}]"
ANY_APOSTROPHE = "['\u2019\u2018]"
TYPOGRAPHIC_UNITS = _word_units(" ", ANY_APOSTROPHE, ANY_SPACE)
UNITS = {"bpe": WORD_UNITS, "character": r"[\s\S]", "byte": r"[\s\S]"}


def _byte_letters() -> dict[str, int]:
    """The byte of each printable letter that represents one in a piece (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + n): byte for n, byte in enumerate(moved)
    }


BYTE_OF = _byte_letters()


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary of byte-level byte-pair encoding: pairs of pieces to merge, in order of priority.

    A dropped piece has no id: where merges give it, its two parts stand instead. A typographic vocabulary was learned
    from targets with their typography; any other normalises targets. One `without_invisible` was learned from texts
    after `drop_invisible`.
    """

    kind: str
    merges: tuple[tuple[str, str], ...]
    verbatim: bool = False  # texts are encoded without normalisation
    dropped: frozenset[str] = frozenset()
    typographic: bool = False
    without_invisible: bool = False

    @cached_property
    def merged(self) -> tuple[str, ...]:
        """The bytes and what merges give, with bytes written as the letters of `BYTE_OF`."""
        # Two merges may give the same piece; a piece that reads like a special one is still an ordinary piece.
        return tuple(
            dict.fromkeys([*sorted(BYTE_OF), *(left + right for left, right in self.merges)])
        )

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """All pieces by id."""
        return (*SPECIALS, *(piece for piece in self.merged if piece not in self.dropped))

    @cached_property
    def spelling(self) -> tuple[tuple[int, ...], ...]:
        """The ids of each merged piece: its own, or those of its parts if it is dropped."""
        ids = {piece: i for i, piece in enumerate(self.pieces) if i >= len(SPECIALS)}
        parts = {left + right: (left, right) for left, right in reversed(self.merges)}
        spelled: dict[str, tuple[int, ...]] = {}
        for piece in self.merged:  # parts come before what they are merged to
            own = ids.get(piece)
            spelled[piece] = (
                (own,)
                if own is not None
                else tuple(i for part in parts[piece] for i in spelled[part])
            )
        return tuple(spelled.values())

    @cached_property
    def raw_pieces(self) -> tuple[bytes | None, ...]:
        """The bytes of each id; None for special ids."""
        ordinary = self.pieces[len(SPECIALS) :]
        return (None,) * len(SPECIALS) + tuple(
            bytes(BYTE_OF[letter] for letter in piece) for piece in ordinary
        )

    @classmethod
    def learn(
        cls,
        texts: Sequence[str],
        size: int,
        kind: str,
        verbatim: bool = False,
        trim: bool = False,
        typographic: bool = False,
        without_invisible: bool = False,
    ) -> "Vocabulary":
        """Learn merges from texts until there are `size` pieces or no pair of pieces occurs twice.

        With `trim`, pieces that occur in these texts only as a part of longer ones are dropped.
        """
        if kind not in UNITS:
            raise ArgumentError(f"kind is {kind!r}; give one of {', '.join(map(repr, UNITS))}")
        preparation: dict[str, Any] = {
            "verbatim": verbatim,
            "typographic": typographic,
            "without_invisible": without_invisible,
        }
        least = len(SPECIALS) + len(BYTE_OF)
        if size < least:
            raise ArgumentError(
                f"vocab_size is {size}; give at least {least}, for {len(SPECIALS)} special pieces and 256 bytes"
            )
        if kind == "byte":
            return cls(kind, (), **preparation)
        merges = _learned(
            texts, size - len(SPECIALS), sorted(BYTE_OF), _byte_units(kind, typographic)
        )
        whole = cls(kind, tuple((left, right) for left, right in merges), **preparation)
        return replace(whole, dropped=whole.unused(texts)) if trim else whole

    def extended(self, texts: Sequence[str], more: int) -> "Vocabulary":
        """This vocabulary with up to `more` pieces that these texts add; all ids that it has stay as they are.

        The merges are learned over its own pieces, as if its training went on with these texts. Pieces that occur only
        as a part of longer ones are dropped.
        """
        own = self.engine()
        # Each piece as one character.
        letters = {piece: chr(0x10000 + i) for i, piece in enumerate(self.merged)}
        units = (unit for text in texts for unit, _ in own.pre_tokenizer.pre_tokenize_str(text))
        words = (
            "".join(letters[token.value] for token in own.model.tokenize(unit)) for unit in units
        )
        found = _learned(words, len(letters) + more, list(letters.values()))
        merges = [
            tuple("".join(self.merged[ord(one) - 0x10000] for one in side) for side in pair)
            for pair in found
        ]
        wider = replace(self, merges=tuple(dict.fromkeys([*self.merges, *merges])))
        return replace(wider, dropped=self.dropped | (wider.unused(texts) - set(self.merged)))

    def spelled(self, pieces: Sequence[str]) -> list[list[int]]:
        """The ids by which this vocabulary spells pieces of another."""
        model = self.engine().model
        return [
            [i for token in model.tokenize(piece) for i in self.spelling[token.id]]
            for piece in pieces
        ]

    def unused(self, texts: Sequence[str]) -> frozenset[str]:
        """The merged pieces that are in no encoding of these texts; bytes are always used."""
        engine = self.engine()
        used = set(BYTE_OF)
        for first in range(0, len(texts), BATCH):
            encoded = engine.encode_batch(texts[first : first + BATCH], add_special_tokens=False)
            used.update(piece for one in encoded for piece in one.tokens)
        return frozenset(self.merged) - used

    def engine(self) -> "Engine":
        """The Hugging Face tokenizer that applies the merges; its ids count `merged`, dropped pieces included."""
        tokenizers = _tokenizers()
        # Special pieces are not given to the engine, so that no text can be encoded as one.
        ids = {piece: i for i, piece in enumerate(self.merged)}
        # Its cache of words saves a tenth of the time, but is never freed: 20 KB for each engine (tokenizers 0.23).
        engine = tokenizers.Tokenizer(
            tokenizers.models.BPE(vocab=ids, merges=list(self.merges), cache_capacity=0)
        )
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
        content |= {"verbatim": True} if self.verbatim else {}
        content |= {"typographic": True} if self.typographic else {}
        content |= {"without_invisible": True} if self.without_invisible else {}
        content |= (
            {"dropped": [piece for piece in self.merged if piece in self.dropped]}
            if self.dropped
            else {}
        )
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
        wanted = {"format", "kind", "specials", "merges"}
        content = content if isinstance(content, dict) else {}
        verbatim = content.pop("verbatim", False)
        typographic = content.pop("typographic", False)
        without_invisible = content.pop("without_invisible", False)
        dropped = content.pop("dropped", [])
        prepared = (verbatim, typographic, without_invisible)
        if set(content) != wanted or not all(isinstance(one, bool) for one in prepared):
            raise _damaged(f"its keys are not {', '.join(sorted(wanted))}")
        if content["format"] != FORMAT:
            raise _damaged(
                f"its format is {str(content['format'])[:60]!r}, where {FORMAT!r} is read"
            )
        if not isinstance(content["kind"], str) or content["kind"] not in UNITS:
            raise _damaged(
                f"its kind is {str(content['kind'])[:60]!r}, where one of {', '.join(UNITS)} is read"
            )
        if content["specials"] != list(SPECIALS):
            raise _damaged(f"its special pieces are not {', '.join(SPECIALS)} with the ids 0 to 3")
        merges = _checked_merges(content["merges"])
        if content["kind"] == "byte" and merges:
            raise _damaged("its kind is 'byte' and it has merges")
        return cls(
            content["kind"],
            merges,
            verbatim,
            _checked_dropped(dropped, merges),
            typographic,
            without_invisible,
        )


def word_units(typographic: bool = False) -> "PreTokenizer":
    """The splitter of texts into words, runs of punctuation and runs of symbols, each with the space before it."""
    return _splitter(
        _word_units(ANY_SPACE, ANY_APOSTROPHE, ANY_SPACE) if typographic else WORD_UNITS
    )


def _byte_units(kind: str, typographic: bool) -> "PreTokenizer":
    units = _splitter(TYPOGRAPHIC_UNITS if typographic and kind == "bpe" else UNITS[kind])
    splitters = _tokenizers().pre_tokenizers
    return splitters.Sequence([units, splitters.ByteLevel(add_prefix_space=False, use_regex=False)])


def _splitter(units: str) -> "PreTokenizer":
    tokenizers = _tokenizers()
    return tokenizers.pre_tokenizers.Split(tokenizers.Regex(units), "isolated")


def _learned(
    texts: Iterable[str], size: int, alphabet: list[str], units: "PreTokenizer | None" = None
) -> list[list[str]]:
    """The merges of up to `size` pieces that occur twice or more in texts, which are split into units first."""
    tokenizers = _tokenizers()
    engine = tokenizers.Tokenizer(tokenizers.models.BPE())
    if units is not None:
        engine.pre_tokenizer = units
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, initial_alphabet=alphabet, show_progress=False
    )
    engine.train_from_iterator(texts, trainer)
    return json.loads(engine.to_str())["model"]["merges"]


def _tokenizers() -> Any:
    with needed("tokenizers", "a tokeniser"):
        return import_module("tokenizers")


def _checked_merges(merges: Any) -> tuple[tuple[str, str], ...]:
    """The merges, checked: each is a new pair of bytes or pieces merged before it."""
    known = set(BYTE_OF)
    checked = {}
    for number, merge in enumerate(merges if isinstance(merges, list) else [merges], start=1):
        pair = (
            isinstance(merge, list)
            and len(merge) == 2
            and all(isinstance(piece, str) for piece in merge)
        )
        if not pair or merge[0] not in known or merge[1] not in known or tuple(merge) in checked:
            raise _damaged(
                f"its merge number {number}, {str(merge)[:60]}, is not a new pair of known pieces"
            )
        checked[tuple(merge)] = None
        known.add(merge[0] + merge[1])
    return tuple(checked)


def _checked_dropped(dropped: Any, merges: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """The dropped pieces, checked: each is what a merge gives."""
    learned = {left + right for left, right in merges}
    for piece in dropped if isinstance(dropped, list) else [dropped]:
        if not isinstance(piece, str) or piece not in learned:
            raise _damaged(f"its dropped piece {str(piece)[:60]!r} is not what a merge gives")
    return frozenset(dropped)


def _damaged(reason: str) -> CheckpointError:
    return CheckpointError(
        f"the tokeniser is damaged or not one of regard's: {reason}; copy or train it again"
    )
