"""Texts to learn from and texts to validate on, from files or from the embedded corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from regard.arguments import count_of
from regard_lab.text.documents import TextFile, split_tail
from regard_lab.text.pronouns import make_split
from regard_lab.text.pronouns.splits import Split
from regard_lab.text.remarks import Tell
from regard_lab.text.translation_data import PRONOUN_COUNTS
from regard_lab.training.recipes.run_config import RunConfig

SHOWN_CHARACTERS = 60  # of a line that is in both texts


class TextParts(NamedTuple):
    """Texts to learn from (train), and to validate on (valid)."""

    train: list[str]
    valid: list[str]


def read_parts(
    config: RunConfig, read: Callable[..., TextFile], share: float, most: int, tell: Tell
) -> TextParts:
    """Texts to learn from and to validate on; without files to validate on, the last of the texts are held out: `share`
    of the characters, at most `most`. `read` is `read_documents` or `read_texts`."""
    texts = read(*config.data)
    tell(texts.report())
    if config.valid:
        held_out = read(*config.valid)
        tell(held_out.report())
        parts = TextParts(list(texts.texts), list(held_out.texts))
    else:
        share = min(share, most / max(1, texts.characters))
        parts = TextParts(*split_tail(texts.texts, share, most))
        learned = sum(map(len, parts.train))
        validated = sum(map(len, parts.valid))
        tell(
            f"{count_of(learned, 'characters', ',')} to learn from; the last {validated:,} validate"
        )
    tell_of_equal(parts.train, parts.valid, tell)
    return parts


def pronoun_sentences(config: RunConfig, tell: Tell) -> TextParts:
    """The English sentences of the embedded corpus, to learn from and to validate on."""
    parts = TextParts(_sources("train", config.seed), _sources("valid", config.seed))
    characters = sum(map(len, parts.train))
    tell(f"{count_of(characters, 'characters', ',')} of the embedded corpus")
    return parts


def _sources(split: Split, seed: int) -> list[str]:
    return [sentence.source for sentence in make_split(split, PRONOUN_COUNTS[split], seed)]


def tell_of_equal(train: Iterable[str], valid: Iterable[str], tell: Tell) -> None:
    """Tell of lines with several words that are in the training and in the validation texts.

    >>> tell_of_equal(["a bird sang\\nit rained"], ["a bird sang", "it snowed"], print)
    1 of 2 validation lines is also learned from ('a bird sang'): the validation loss is lower than that of a new text
    """
    held_out = _lines_of_words(valid)
    equal = _lines_of_words(train) & held_out
    if not equal:
        return

    longest = min(equal, key=lambda line: (-len(line), line))
    verb = "is" if len(equal) == 1 else "are"
    tell(
        f"{len(equal):,} of {count_of(len(held_out), 'validation lines', ',')} {verb} also learned from "
        f"({longest.strip()[:SHOWN_CHARACTERS]!r}): the validation loss is lower than that of a new text"
    )


def _lines_of_words(texts: Iterable[str]) -> set[str]:
    """The distinct lines that have several words."""
    lines: set[str] = set()
    for text in texts:
        lines |= {line for line in text.split("\n") if " " in line.strip()}
    return lines
