"""The pieces a tokeniser knows: four specials, the 256 bytes, and one piece for each learned merge."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from regard.errors import ArgumentError, CheckpointError
from regard.text.packages import needed

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine
    from tokenizers.pre_tokenizers import PreTokenizer

PAD, UNKNOWN, BEGIN, END = range(4)
SPECIALS = ("<pad>", "<unknown>", "<begin>", "<end>")  # how they are shown; no text is ever encoded as one

FORMAT = "regard tokeniser 1"

# Pieces never cross the bounds of these units. A word keeps its inner apostrophes, marks and joiners; a run of
# punctuation and a run of symbols (emoji with all that modifies them) are units too; each takes the space before it.
LETTER, REST = r"[\p{L}\p{N}]", r"[\p{L}\p{M}\p{N}\x{200C}\x{200D}]*"
WORD_UNITS = rf" ?{LETTER}{REST}(?:'{LETTER}{REST})*| ?\p{{P}}+| ?[^\s\p{{L}}\p{{N}}\p{{P}}]+|\s+"
UNITS = {"bpe": WORD_UNITS, "character": r"[\s\S]", "byte": r"[\s\S]"}


def _byte_letters() -> dict[str, int]:
    """The printable letter that stands for each byte in a piece (GPT-2's table), and its byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(moved)}


BYTE_OF = _byte_letters()


@dataclass(frozen=True)
class Vocabulary:
    """What byte-level byte-pair encoding has learned: pairs of pieces to merge, in the order of learning."""

    kind: str
    merges: tuple[tuple[str, str], ...]
    verbatim: bool = False  # texts are encoded as they stand, not normalised

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """Every piece by id, its bytes written in the letters of `BYTE_OF`."""
        # Two merges may give one piece; a piece that spells like a special is still another piece.
        learned = dict.fromkeys([*sorted(BYTE_OF), *(left + right for left, right in self.merges)])
        return (*SPECIALS, *learned)

    @cached_property
    def raw_pieces(self) -> tuple[bytes | None, ...]:
        """The bytes each id stands for, None for the specials."""
        ordinary = self.pieces[len(SPECIALS) :]
        return (None,) * len(SPECIALS) + tuple(bytes(BYTE_OF[letter] for letter in piece) for piece in ordinary)

    @classmethod
    def learn(cls, texts: Iterable[str], size: int, kind: str, verbatim: bool = False) -> "Vocabulary":
        """Merges learned from texts until there are `size` pieces, or no pair of pieces occurs twice."""
        if kind not in UNITS:
            raise ArgumentError(f"kind is {kind!r}; a tokeniser is one of {', '.join(map(repr, UNITS))}")
        least = len(SPECIALS) + len(BYTE_OF)
        if size < least:
            raise ArgumentError(
                f"vocab_size is {size}; it must be at least {least}: {len(SPECIALS)} special pieces and 256 bytes"
            )
        if kind == "byte":
            return cls(kind, (), verbatim)
        with needed("tokenizers", "a tokeniser"):
            from tokenizers import Tokenizer as Engine
            from tokenizers import models, trainers

        engine = Engine(models.BPE())
        engine.pre_tokenizer = _byte_units(kind)
        trainer = trainers.BpeTrainer(
            vocab_size=size - len(SPECIALS), min_frequency=2, initial_alphabet=sorted(BYTE_OF), show_progress=False
        )
        engine.train_from_iterator(texts, trainer)
        merges = json.loads(engine.to_str())["model"]["merges"]
        return cls(kind, tuple((left, right) for left, right in merges), verbatim)

    def engine(self) -> "Engine":
        """The Hugging Face tokenizer that applies the merges."""
        with needed("tokenizers", "a tokeniser"):
            from tokenizers import Tokenizer as Engine
            from tokenizers import models

        # The specials stay outside the engine, so that no text can be encoded as one of them.
        ids = {piece: i for i, piece in enumerate(self.pieces) if i >= len(SPECIALS)}
        engine = Engine(models.BPE(vocab=ids, merges=list(self.merges)))
        engine.pre_tokenizer = _byte_units(self.kind)
        return engine

    def to_json(self) -> str:
        """The vocabulary as one line of ASCII."""
        content = {"format": FORMAT, "kind": self.kind, "specials": SPECIALS, "merges": self.merges}
        return json.dumps({**content, **({"verbatim": True} if self.verbatim else {})}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Vocabulary":
        """The vocabulary of a `to_json` text; nothing in it is trusted.

        Raises:
            CheckpointError: anything but a text that `to_json` could have written.
        """
        try:
            found = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(f"the tokeniser is not valid JSON ({error}); copy or train it again") from None
        wanted = {"format", "kind", "specials", "merges"}
        verbatim = isinstance(found, dict) and found.pop("verbatim", False)
        if not isinstance(found, dict) or set(found) != wanted or not isinstance(verbatim, bool):
            raise _damaged(f"its keys are not {', '.join(sorted(wanted))}")
        if found["format"] != FORMAT:
            raise _damaged(f"its format is {str(found['format'])[:60]!r}, where {FORMAT!r} is read")
        if not isinstance(found["kind"], str) or found["kind"] not in UNITS:
            raise _damaged(f"its kind is {str(found['kind'])[:60]!r}, where one of {', '.join(UNITS)} is read")
        if found["specials"] != list(SPECIALS):
            raise _damaged(f"its special pieces are not {', '.join(SPECIALS)} with the ids 0 to 3")
        merges = _checked_merges(found["merges"])
        if found["kind"] == "byte" and merges:
            raise _damaged("it is of bytes and yet merges them")
        return cls(found["kind"], merges, verbatim)


def word_units() -> "PreTokenizer":
    """What cuts a text into words, runs of punctuation and runs of symbols."""
    with needed("tokenizers", "a tokeniser"):
        from tokenizers import Regex, pre_tokenizers
    return pre_tokenizers.Split(Regex(WORD_UNITS), "isolated")


def _byte_units(kind: str) -> "PreTokenizer":
    with needed("tokenizers", "a tokeniser"):
        from tokenizers import Regex, pre_tokenizers
    units = pre_tokenizers.Split(Regex(UNITS[kind]), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([units, letters])


def _checked_merges(merges: Any) -> tuple[tuple[str, str], ...]:
    """The merges, each a pair of pieces that are bytes or were merged before it."""
    known, checked = set(BYTE_OF), {}
    for number, merge in enumerate(merges if isinstance(merges, list) else [merges], start=1):
        pair = isinstance(merge, list) and len(merge) == 2 and all(isinstance(piece, str) for piece in merge)
        if not pair or merge[0] not in known or merge[1] not in known or tuple(merge) in checked:
            raise _damaged(f"its merge number {number}, {str(merge)[:60]}, is not a new pair of pieces known before it")
        checked[tuple(merge)] = None
        known.add(merge[0] + merge[1])
    return tuple(checked)


def _damaged(reason: str) -> CheckpointError:
    return CheckpointError(f"the tokeniser is damaged or not one of regard's: {reason}; copy or train it again")
