"""`regard translate`: sentences, or lines of standard input, each to one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from itertools import islice
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import typer

from regard.arguments import suggest
from regard.errors import ArgumentError
from regard_lab.cli.console import check_picture_name, out_data, out_encoding, out_json, out_lines, out_width, say
from regard_lab.cli.hints import Lengths, remarks_at_start, say_of
from regard_lab.cli.lines import INPUT, OUT, wants_file, write_lines
from regard_lab.cli.options import (
    Alpha,
    Beam,
    Cache,
    CacheDtype,
    Json,
    Normalisation,
    Run,
    check_search,
    default,
    default_note,
)
from regard_lab.cli.why import Instead, Place, asked_why, draw_why, show_why
from regard_lab.decoding import Translation, Translator
from regard_lab.decoding.translator import Ends
from regard_lab.seeing import LENSES, draw_maps, look, relevance, terminal_map
from regard_lab.seeing.maps import KINDS, check_attends
from regard_lab.seeing.picture import WORDING
from regard_lab.text import read_lines, tidy, tidy_target
from regard_lab.text.seen_words import UnknownWords
from regard_lab.text.terminal import one_line

LINES_AT_ONCE = 256
WIDTH, LEAST_MAP = 100, 24  # characters of a line where none are known, and that a map needs


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
    cache_kind: Cache = default(Translator.translate, "cache"),
    cache_dtype: CacheDtype = default(Translator.translate, "cache_dtype"),
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the attention of one sentence, or what --why shows.")
    ] = None,
    drawn: Annotated[
        str | None,
        typer.Option("--map", metavar="KIND", help=f"Draw attention in the terminal: {', '.join(sorted(KINDS))}."),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="With --map: the layer, from 0. [default: the last]")
    ] = None,
    head: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="With --map: the head, from 0. [default: the mean of all]")
    ] = None,
    why: Annotated[
        str | None, typer.Option(metavar="WORD", help="Explain why this word of one translation was written.")
    ] = None,
    instead: Instead = None,
    lens: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"With --why: {', '.join(LENSES)}. {default_note(relevance, 'lens')}"),
    ] = None,
    place: Place = None,
    source: Annotated[Path | None, INPUT] = None,
    result: Annotated[Path | None, OUT] = None,
    as_json: Json = False,
) -> None:
    """Translate in the order of the lines, saying each translation as soon as its batch is done."""
    check_search(normalisation, beam)
    sentences = sentences or []
    search: dict[str, Any] = {"beam": beam, "normalisation": normalisation, "alpha": alpha}
    search |= {"cache": cache_kind, "cache_dtype": cache_dtype}
    if wants_file(source, result, sentences, picture=picture, why=why, map=drawn):
        _file(run, source, result, search, as_json)
        return
    reason = asked_why(why, instead, lens, place, sentences)
    if picture is not None:
        check_picture_name(picture)
        if len(sentences) != 1:
            raise ArgumentError(
                f"--picture draws one sentence and {len(sentences)} were given; give one as an argument"
            )
    _check_map(drawn, layer, head, as_json)
    translator = Translator.load(run)
    if drawn is not None or (picture is not None and reason is None):
        check_attends(translator.model)  # before any work
    by_hand = not sentences and sys.stdin.isatty()
    if by_hand:
        say("one sentence per line; end with Ctrl-D")
    for remark in remarks_at_start(run, sentences):
        say(remark)
    lines = sentences or read_lines(sys.stdin.buffer)
    unknown, lengths, ends = UnknownWords(translator.words, "translation"), Lengths(run), Ends()
    for chunk in _chunks(lines, 1 if by_hand else LINES_AT_ONCE):
        for remark in filter(None, map(lengths.remark, chunk)):
            say(remark)
        translations = translator.translate(chunk, **search)
        ends.add(translations)
        for translation in translations:
            if remark := unknown.remark(translation.source):
                say(remark)
            explained = None if reason is None else reason.answer(translator, translation)
            if as_json:
                more = {} if explained is None else {"why": explained.to_dict()}
                out_json(json.dumps({**_record(translation), **more}, ensure_ascii=False))
            else:
                out_data(tidy_target(translation.text))
                if drawn is not None:
                    out_lines(_map(translator, translation, drawn, -1 if layer is None else layer, head))
                if explained is not None:
                    show_why(explained)
            if picture is not None and explained is not None:
                draw_why(explained, translation, picture)
            elif picture is not None:
                _draw(translator, translation, picture)
        if by_hand:
            say_of(ends)
            ends = Ends()
    say_of(ends)


def _file(run: Path, source: Path | None, result: Path | None, search: dict[str, Any], as_json: bool) -> None:
    """This process's share of the lines of a file."""
    assert source is not None
    assert result is not None
    load = cache(Translator.load)  # not before a line is to be translated
    remarking = cache(lambda: (UnknownWords(load(run).words, "translation"), Lengths(run)))
    ends = Ends()

    def compute(lines: Sequence[str], first: int) -> list[str]:
        unknown, lengths = remarking()
        for line in lines:
            for remark in filter(None, (lengths.remark(line), unknown.remark(line))):
                say(remark)
        found = load(run).translate(list(lines), **search)
        ends.add(found)
        if as_json:
            return [json.dumps(_record(one), ensure_ascii=False) for one in found]
        return [one_line(tidy_target(one.text)) for one in found]

    write_lines(run, source, result, compute, {"command": "translate", "json": as_json, **search})
    say_of(ends)


def _record(translation: Translation) -> dict[str, Any]:
    record = asdict(translation)
    return {**record, "text": tidy_target(translation.text)}


def _draw(translator: Translator, translation: Translation, picture: Path) -> None:
    maps = look(translator.model, translator.tokeniser, translation.source, translation.ids)
    draw_maps(maps, picture, title=f"{tidy(translation.source)} → {tidy_target(translation.text)}")
    say(f"the attention is drawn in {picture}")


def _check_map(drawn: str | None, layer: int | None, head: int | None, as_json: bool) -> None:
    """Raise an ArgumentError for a kind that does not exist, or an option that needs --map or does not go with it."""
    if drawn is None:
        if given := [name for name, value in (("--layer", layer), ("--head", head)) if value is not None]:
            verb = "needs" if len(given) == 1 else "need"
            raise ArgumentError(f"{' and '.join(given)} {verb} --map, such as --map cross")
    elif drawn not in KINDS:
        raise ArgumentError(f"--map {drawn!r} does not exist; {suggest(drawn, sorted(KINDS))}")
    elif as_json:
        raise ArgumentError("--map draws characters, and --json prints JSON; leave one of them out")


def _map(translator: Translator, translation: Translation, kind: Any, layer: int, head: int | None) -> str:
    """The weights between words as a map of characters that fits the terminal, with a line that says which they are."""
    maps = look(translator.model, translator.tokeniser, translation.source, translation.ids).merged()
    weights = maps.matrix(kind, layer, head)
    name, columns, rows = WORDING[kind]
    layers = len(getattr(maps, kind))
    which = "mean of all heads" if head is None else f"head {head}"
    width = max(out_width() or WIDTH, LEAST_MAP)
    said = f"{name}, layer {layer % layers} (of 0 to {layers - 1}), {which}; rows: {rows}, columns: {columns}"
    drawing = terminal_map(weights, *maps.labels(kind), width, out_encoding())
    return "\n".join([*wrap(said, width), drawing])


def _chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(lines)
    while chunk := list(islice(remaining, size)):
        yield chunk
