"""`regard classify`: texts, or lines of standard input, each to its label."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import islice
from typing import Annotated

import typer

from regard_lab.cli.console import out_data, out_json, say
from regard_lab.cli.hints import say_if_unfinished
from regard_lab.cli.options import Json, Run
from regard_lab.text import read_lines, tidy
from regard_lab.text.seen_words import UnknownWords
from regard_lab.training.recipes import Classifier

LINES_AT_ONCE = 32


def classify(
    run: Run,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Texts; without them, lines of standard input.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the label of each text and its probability, in the order of the lines; an empty line has none."""
    classifier = Classifier.load(run)
    say_if_unfinished(run)
    by_hand = not texts and sys.stdin.isatty()
    if by_hand:
        say("one text per line; end with Ctrl-D")
    unknown = UnknownWords(classifier.words, "label")
    lines = iter(texts or read_lines(sys.stdin.buffer))
    while chunk := list(islice(lines, 1 if by_hand else LINES_AT_ONCE)):
        rows = iter(classifier.probabilities([text for text in map(tidy, chunk) if text]))
        for text in chunk:
            row = next(rows) if tidy(text) else None
            if remark := unknown.remark_on_whole(text):
                say(remark)
            if as_json:
                out_json(_record(text, classifier.classes, row))
            else:
                out_data(_line(classifier.classes, row))


def _line(classes: Sequence[str], row: list[float] | None) -> str:
    """`label TAB probability`."""
    if row is None:
        return ""
    best = max(range(len(classes)), key=row.__getitem__)
    label = classes[best].replace("\t", "\\t")  # the tab ends it
    return f"{label}\t{row[best]:.3f}"


def _record(text: str, classes: Sequence[str], row: list[float] | None) -> str:
    probabilities = dict(zip(classes, row, strict=True)) if row is not None else {}
    label = max(probabilities, key=probabilities.__getitem__) if probabilities else None
    return json.dumps({"text": text, "label": label, "probabilities": probabilities}, ensure_ascii=False)
