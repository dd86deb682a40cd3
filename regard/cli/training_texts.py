"""Texts to learn from and texts to validate on, from files or from the embedded corpus."""

from __future__ import annotations

from collections.abc import Callable

from regard.cli.console import say
from regard.cli.run_settings import RunSettings
from regard.text.documents import TextFile, split_tail
from regard.text.pronouns import make_split
from regard.text.translation_data import PRONOUN_COUNTS


def read_parts(
    settings: RunSettings, read: Callable[..., TextFile], share: float, most: int
) -> tuple[list[str], list[str]]:
    """Both from their files; without files to validate on, a share of the others' characters, or at most so many.

    Raises:
        DataError: a file that cannot be read.
    """
    found = read(*settings.data)
    say(found.report())
    if settings.valid:
        held_out = read(*settings.valid)
        say(held_out.report())
        return list(found.texts), list(held_out.texts)
    train, valid = split_tail(found.texts, min(share, most / max(1, found.characters)), most)
    say(f"{sum(map(len, train)):,} characters to learn from; the last {sum(map(len, valid)):,} validate")
    return train, valid


def pronoun_sentences(settings: RunSettings) -> tuple[list[str], list[str]]:
    """The English sentences of the embedded corpus."""
    train, valid = (
        [sentence.source for sentence in make_split(split, PRONOUN_COUNTS[split], settings.seed)]
        for split in ("train", "valid")
    )
    say(f"{sum(map(len, train)):,} characters of the embedded corpus")
    return train, valid
