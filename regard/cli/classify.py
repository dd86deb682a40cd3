"""`regard classify`: texts, or lines of standard input, each to its label."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch

from regard.cli.console import out_data, out_json, say
from regard.cli.runs import CLASSES_FILE, LONGEST_FILE
from regard.decoding.loading import load_with_tokeniser
from regard.errors import CheckpointError
from regard.models.encoder import TextEncoder
from regard.text import BEGIN, END, Tokeniser, pad, read_lines, tidy

LINES_AT_ONCE = 32


def run_classify(run: Path, texts: list[str], *, as_json: bool) -> None:
    """Say the label of each text and how probable it is, in the order of the lines; an empty line has none."""
    model, tokeniser, classes, longest = load_classifier(run)
    alone = not texts and sys.stdin.isatty()
    if alone:
        say("one text a line; end with Ctrl-D")
    lines = iter(texts or read_lines(sys.stdin.buffer))
    while chunk := list(islice(lines, 1 if alone else LINES_AT_ONCE)):
        told = [text for text in map(tidy, chunk) if text]
        rows = iter(probabilities(model, tokeniser, told, longest))
        for text in chunk:
            row = next(rows) if tidy(text) else None
            if as_json:
                out_json(_record(text, classes, row))
            else:
                out_data(_line(classes, row))


def load_classifier(run: Path) -> tuple[TextEncoder, Tokeniser, list[str], int]:
    """The best model of a training, or a saved one, with its tokeniser, the labels in the order of its scores,
    and how many ids of a text it reads.

    Raises:
        CheckpointError: missing, damaged, or no classifier.
    """
    saved, tokeniser = load_with_tokeniser(run, TextEncoder.KIND)
    model = TextEncoder.from_saved(saved, str(run))
    classes = json.loads(saved.extra_files.get(CLASSES_FILE, "[]"))
    if model.config.head != "classes" or len(classes) != model.config.classes:
        raise CheckpointError(
            f"{run} holds an encoder whose head is {model.config.head!r} and {len(classes)} labels, so it sorts "
            f"nothing; train one with: regard train classifier --from {run}"
        )
    longest = int(saved.extra_files.get(LONGEST_FILE, model.config.max_length))
    return model, tokeniser, classes, longest


@torch.no_grad()
def probabilities(model: TextEncoder, tokeniser: Tokeniser, texts: Sequence[str], longest: int) -> list[list[float]]:
    """How probable each class is of each text, of which the first `longest` ids are read."""
    if not texts:
        return []
    device = next(model.parameters()).device
    ids = pad([[BEGIN, *tokeniser.encode(text)[: longest - 2], END] for text in texts])
    return model.eval()(ids.to(device)).double().softmax(-1).tolist()


def _line(classes: Sequence[str], row: list[float] | None) -> str:
    """`label TAB probability`."""
    if row is None:
        return ""
    best = max(range(len(classes)), key=row.__getitem__)
    label = classes[best].replace("\t", "\\t")  # the tab ends it
    return f"{label}\t{row[best]:.3f}"


def _record(text: str, classes: Sequence[str], row: list[float] | None) -> str:
    found = dict(zip(classes, row, strict=True)) if row is not None else {}
    label = max(found, key=found.__getitem__) if found else None
    return json.dumps({"text": text, "label": label, "probabilities": found}, ensure_ascii=False)
