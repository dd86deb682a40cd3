"""`regard translate`: sentences, or lines of standard input, each to one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.console import check_picture_name, out_data, out_json, out_lines, say
from regard.cli.hints import Lengths, remarks_at_start
from regard.cli.options import Alpha, Beam, Json, Normalisation, Run, check_search, default
from regard.cli.why import asked_why, draw_why
from regard.decoding import Translation, Translator
from regard.errors import ArgumentError
from regard.inspection import LENSES, draw_maps, look, relevance
from regard.inspection.maps import check_attends
from regard.text import read_lines, tidy
from regard.text.seen_words import UnknownWords

LINES_AT_ONCE = 256


def translate(
    run: Run,
    sentences: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SENTENCE", help="Sentences; without them, lines of standard input.", show_default=False
        ),
    ] = None,
    beam: Beam = default(Translator.translate, "beam"),
    normalisation: Normalisation = default(Translator.translate, "normalisation"),
    alpha: Alpha = default(Translator.translate, "alpha"),
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the attention of one sentence, or what --why shows.")
    ] = None,
    why: Annotated[
        str | None, typer.Option(metavar="WORD", help="Explain why this word of one translation was written.")
    ] = None,
    instead: Annotated[
        str | None, typer.Option(metavar="WORDS", help="With --why: the words it is compared with, as in er,sie.")
    ] = None,
    lens: Annotated[str, typer.Option(help=f"With --why: {', '.join(LENSES)}.")] = default(relevance, "lens"),
    place: Annotated[
        int | None, typer.Option(min=0, help="With --why: which occurrence, as an index of words from 0.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Translate in the order of the lines, saying each translation as soon as its batch is done."""
    check_search(normalisation)
    sentences = sentences or []
    reason = asked_why(why, instead, lens, place, sentences)
    if picture is not None:
        check_picture_name(picture)
        if len(sentences) != 1:
            raise ArgumentError(
                f"--picture draws one sentence and {len(sentences)} were given; give one as an argument"
            )
    translator = Translator.load(run)
    if picture is not None and reason is None:
        check_attends(translator.model)  # before any work
    by_hand = not sentences and sys.stdin.isatty()
    if by_hand:
        say("one sentence per line; end with Ctrl-D")
    for remark in remarks_at_start(run, sentences):
        say(remark)
    lines = sentences or read_lines(sys.stdin.buffer)
    unknown, lengths = UnknownWords(translator.words, "translation"), Lengths(run)
    for chunk in _chunks(lines, 1 if by_hand else LINES_AT_ONCE):
        for remark in filter(None, map(lengths.remark, chunk)):
            say(remark)
        for translation in translator.translate(chunk, beam=beam, normalisation=normalisation, alpha=alpha):
            if remark := unknown.remark(translation.source):
                say(remark)
            explained = None if reason is None else reason.answer(translator, translation)
            if as_json:
                more = {} if explained is None else {"why": explained.to_dict()}
                out_json(json.dumps({**_record(translation), **more}, ensure_ascii=False))
            else:
                out_data(tidy(translation.text))
                if explained is not None:
                    out_lines(explained.text())
            if picture is not None and explained is not None:
                draw_why(explained, translation, picture)
            elif picture is not None:
                _draw(translator, translation, picture)


def _record(translation: Translation) -> dict[str, Any]:
    record = asdict(translation)
    return {**record, "text": tidy(translation.text)}


def _draw(translator: Translator, translation: Translation, picture: Path) -> None:
    maps = look(translator.model, translator.tokeniser, translation.source, translation.ids)
    draw_maps(maps, picture, title=f"{tidy(translation.source)} → {tidy(translation.text)}")
    say(f"the attention is drawn in {picture}")


def _chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(lines)
    while chunk := list(islice(remaining, size)):
        yield chunk
