"""`regard translate --why`: what one written word depends on, for the one sentence that was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.cli.console import say
from regard.decoding import Translation, Translator
from regard.errors import ArgumentError
from regard.inspection import Relevance, draw_relevance, relevance
from regard.inspection.lenses.explain import check_options
from regard.text import tidy


@dataclass(frozen=True)
class Why:
    """A written word, the words it is compared with, and the lens."""

    word: str
    others: tuple[str, ...]
    lens: Any
    place: int | None

    def answer(self, translator: Translator, translation: Translation) -> Relevance:
        """The relevance for this word in a translation.

        Raises:
            ArgumentError: the word was not written, or several times.
        """
        if self.word.lower() not in translation.text.lower():
            raise ArgumentError(
                f"--why {self.word}: the translation is {tidy(translation.text)!r}, and {self.word!r} is not in it"
            )
        return relevance(
            translator.model, translator.tokeniser, translation.source, translation.ids, self.word, self.others,
            self.lens, place=self.place,
        )  # fmt: skip


def asked_why(
    word: str | None, instead: str | None, lens: str, place: int | None, sentences: Sequence[str]
) -> Why | None:
    """The question of the options, or None without --why.

    Raises:
        ArgumentError: options that belong to --why without it, --why without words to compare with, or more than one
            sentence.
    """
    if word is None:
        if given := [name for name, value in (("--instead", instead), ("--place", place)) if value is not None]:
            raise ArgumentError(f"{' and '.join(given)} belongs to --why; say which written word to explain")
        return None
    check_options(lens)
    others = tuple(part.strip() for part in (instead or "").split(",") if part.strip())
    if not others:
        raise ArgumentError(
            f"--why {word} explains why {word!r} was written instead of other words; name them, as in --instead er,sie"
        )
    if len(sentences) != 1:
        raise ArgumentError(f"--why explains one sentence and {len(sentences)} were given; give one as an argument")
    return Why(word, others, lens, place)


def draw_why(explained: Relevance, translation: Translation, picture: Path) -> None:
    """Draw the relevance, and print where."""
    draw_relevance(explained, picture, title=f"{tidy(translation.source)} → {tidy(translation.text)}")
    say(f"the words with their relevance are drawn in {picture}")
