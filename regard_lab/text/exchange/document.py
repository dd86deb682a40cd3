"""A file of messages whose translations are written back into it: its texts, and what is left out of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.reprs import Described

HAS_TRANSLATION = "with a translation (--again translates them too)"
NOT_TO_TRANSLATE = 'marked by translate="no"'
EMPTY = "without text"
CONFIRMED = "with a confirmed translation"
UNREADABLE = "with more codes, or other characters, than can be kept apart"


@dataclass(frozen=True)
class WritingOptions:
    """What is written into a file.

    Args:
        language: of the translations, if the file does not name it; a code such as "de" or "pt-BR".
        again: translate also what has a translation that no person has confirmed.
        confirmed: write translations as if a person had confirmed them.
    """

    language: str | None = None
    again: bool = False
    confirmed: bool = False


class Document(Described, ABC):
    """A file of messages: `texts` are to be translated, in order.

    `messages` lists the indices of the texts of each message; a message is written if all of its texts are translated.
    `left_out` counts the messages that are not translated, by the reason.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts: list[str] = []
        self.messages: list[tuple[int, ...]] = []
        self.left_out: Counter[str] = Counter()
        self.remarks: list[str] = []

    @abstractmethod
    def written(self, translations: Sequence[str | None]) -> bytes:
        """The file with the translations of `texts`; None leaves what the file has. Everything else stays as it is."""


@dataclass(frozen=True)
class Splice:
    """A part of a text that is replaced."""

    start: int
    stop: int
    text: str


def spliced(text: str, splices: Sequence[Splice]) -> str:
    """The text with all splices; those of one place in their order.

    >>> spliced("a b", [Splice(2, 3, "c"), Splice(0, 0, "the ")])
    'the a c'
    """
    parts = []
    end = 0
    for splice in sorted(splices, key=lambda splice: splice.start):
        parts += [text[end : splice.start], splice.text]
        end = splice.stop
    return "".join([*parts, text[end:]])
