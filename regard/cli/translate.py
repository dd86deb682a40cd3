"""`regard translate`: sentences, or lines of standard input, each to one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from regard.cli.console import check_picture_name, out_data, out_json, say
from regard.decoding import NORMALISATIONS, Translation, Translator
from regard.errors import ArgumentError
from regard.text import read_lines, tidy

LINES_AT_ONCE = 256


def run_translate(
    run: Path,
    sentences: list[str],
    *,
    beam: int,
    normalisation: str,
    alpha: float,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Translate in the order of the lines, saying each translation as soon as its batch is done."""
    check_search(normalisation)
    if picture is not None:
        check_picture_name(picture)
        if len(sentences) != 1:
            raise ArgumentError(
                f"--picture draws one sentence and {len(sentences)} were given; give one as an argument"
            )
    translator = Translator.load(run)
    if picture is not None:
        check_can_look(translator)
    alone = not sentences and sys.stdin.isatty()
    if alone:
        say("one sentence a line; end with Ctrl-D")
    lines = sentences or read_lines(sys.stdin.buffer)
    for chunk in _chunks(lines, 1 if alone else LINES_AT_ONCE):
        for translation in translator.translate(chunk, beam=beam, normalisation=normalisation, alpha=alpha):
            if as_json:
                out_json(json.dumps(_record(translation), ensure_ascii=False))
            else:
                out_data(tidy(translation.text))
            if picture is not None:
                _draw(translator, translation, picture)


def check_search(normalisation: str) -> None:
    if normalisation not in NORMALISATIONS:
        raise ArgumentError(f"--normalisation {normalisation!r} does not exist; there are {', '.join(NORMALISATIONS)}")


def check_can_look(translator: Translator) -> None:
    """Raise an UnsupportedError, before any work, if the model has no attention to draw."""
    from regard.inspection.maps import check_attends

    check_attends(translator.model)


def _record(translation: Translation) -> dict[str, Any]:
    record = asdict(translation)
    return {**record, "text": tidy(translation.text)}


def _draw(translator: Translator, translation: Translation, picture: Path) -> None:
    from regard.inspection import draw_maps, look

    maps = look(translator.model, translator.tokeniser, translation.source, translation.ids)
    draw_maps(maps, picture, title=f"{tidy(translation.source)} → {tidy(translation.text)}")
    say(f"the attention is drawn in {picture}")


def _chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(lines)
    while chunk := list(islice(remaining, size)):
        yield chunk
