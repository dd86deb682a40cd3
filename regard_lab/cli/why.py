"""`regard translate --why`: what one written word depends on, for the one sentence that was given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from regard.errors import ArgumentError
from regard_lab.cli.console import out_lines, out_text, out_width, say
from regard_lab.cli.options import default, listed
from regard_lab.decoding import Translation, Translator
from regard_lab.seeing import Relevance, draw_relevance, relevance, visible
from regard_lab.seeing.lenses.explaining import check_options
from regard_lab.seeing.lenses.record import LEAST_WIDTH
from regard_lab.text import normalise, tidy, tidy_target

Instead = Annotated[
    str | None,
    typer.Option(
        metavar="WORDS",
        help="With --why: the words it is compared with, as in er,sie. [default: the three that the model found most "
        "probable]",
    ),
]
Place = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="With --why: which occurrence, as an index of words from 0.")
]
PRONOUNS = ("es", "er", "sie")  # what English *it* can become in German


@dataclass(frozen=True)
class Why:
    """A written word, the words it is compared with (by default the model's most probable ones), and the lens."""

    word: str
    others: tuple[str, ...]
    lens: Any
    place: int | None

    def answer(self, translator: Translator, translation: Translation) -> Relevance:
        """The relevance for this word in a translation.

        Raises:
            ArgumentError: the word was not written, or several times.
        """
        instead = _written_instead(self.word, translation)
        if instead or normalise(self.word).lower() not in normalise(translation.text).lower():
            raise ArgumentError(
                f"--why {self.word}: the translation is {tidy_target(translation.text)!r}, and "
                f"{self.word!r} is not in it{instead}"
            )
        found = relevance(
            translator.model, translator.tokeniser, translation.source, translation.ids, self.word, self.others,
            self.lens, place=self.place,
        )  # fmt: skip
        if not self.others:
            say(
                f"compared with {', '.join(map(visible, found.others))}, the most probable alternatives to "
                f"{visible(found.word)}; --instead names other words"
            )
        return found


def _written_instead(word: str, translation: Translation) -> str:
    """For a word that is in the source only, the way to ask about a written one, by preference a pronoun."""
    written, lowered = _words(translation.text), word.lower()
    if lowered not in _words(translation.source.lower()) or lowered in map(str.lower, written) or not written:
        return ""
    example = next((one for one in written if one.lower() in PRONOUNS), written[0])
    return f"; it is a word of the source. Ask about a written word, e.g. --why {quote(example)}"


def _words(text: str) -> list[str]:
    """The words without their punctuation."""
    return re.findall(r"\w+", text)


def asked_why(
    word: str | None, instead: str | None, lens: str | None, place: int | None, sentences: Sequence[str]
) -> Why | None:
    """The question of the options, or None without --why.

    Raises:
        ArgumentError: options that belong to --why without it, --instead without words, or more than one sentence.
    """
    check_goes_with_why(word, {"--instead": instead, "--lens": lens, "--place": place})
    if word is None:
        return None
    lens = default(relevance, "lens") if lens is None else lens
    check_options(lens)
    others = words_instead(instead)
    if len(sentences) != 1:
        raise ArgumentError(f"--why explains one sentence and {len(sentences)} were given; give one as an argument")
    return Why(word, others, lens, place)


def check_goes_with_why(word: str | None, options: Mapping[str, Any]) -> None:
    """Refuse options, by their names, that were given without --why."""
    given = [name for name, value in options.items() if value is not None]
    if word is None and given:
        verb = "belongs" if len(given) == 1 else "belong"
        raise ArgumentError(f"{' and '.join(given)} {verb} to --why; say which written word to explain")


def words_instead(instead: str | None) -> tuple[str, ...]:
    """The words of --instead; without it none, which means the most probable ones."""
    others = tuple(listed(instead))
    if instead is not None and not others:
        raise ArgumentError(
            "--instead is empty; name the words to compare with, as in --instead er,sie, or leave it out"
        )
    return others


def show_why(explained: Relevance) -> None:
    """Print the relevance; sentences and bars fit the terminal."""
    width = out_width()
    text = explained.text() if width is None else explained.text(max(width, LEAST_WIDTH))
    for line in text.splitlines():
        if width is None or len(line) <= width:
            out_lines(line)
        else:
            out_text(line)


def draw_why(explained: Relevance, translation: Translation, picture: Path) -> None:
    """Draw the relevance, and print where."""
    draw_relevance(explained, picture, title=f"{tidy(translation.source)} → {tidy_target(translation.text)}")
    say(f"the words with their relevance are drawn in {picture}")
