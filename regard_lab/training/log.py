"""The log of a run: a checked line of JSON for every few steps and for each validation."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from regard.arguments import a_path, count_of
from regard.errors import CheckpointError
from regard.storage.files import open_plain, replace_file, sync
from regard.storage.sealed_json import parse_json

CHECK = "crc32"
RIGHT = "right_"  # begins the name of a share of right ids, as validations write it
_CHECKED = re.compile(rb'(.*), "crc32": "([0-9a-f]{8})"\}', re.DOTALL)


class Log:
    """The log of a run, opened at a step: lines of later steps, left by a killed session, are cut.

    `notes` has a sentence about lines that were there and cannot be read; the others are kept.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = Log(Path(folder) / "log.jsonl", step=0)
    ...     log.write({"step": 10, "kind": "training", "loss": 2.5})
    ...     read_log(Path(folder) / "log.jsonl")
    [{'step': 10, 'kind': 'training', 'loss': 2.5}]
    """

    def __init__(self, path: Path, step: int) -> None:
        self._path = path
        lost: list[str] = []
        before = read_log(path, lost) if path.exists() else []
        self.notes = about_lost(path, lost, before)
        replace_file(
            path, "".join(_render(line) for line in before if line["step"] <= step).encode()
        )

    def write(self, line: dict[str, Any]) -> None:
        """Add a line; a number that JSON does not have (an infinite loss) is written as null."""
        clean = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in line.items()
        }
        with self._writing(), open(self._path, "a", encoding="utf-8") as file:
            file.write(_render(clean))

    def sync(self) -> None:
        """Wait until the lines are on the disk, so that no checkpoint is newer than its log."""
        with self._writing():
            sync(self._path)

    @contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"{self._path} could not be written: {error.strerror or error}"
            ) from error


def read_log(path: str | Path, lost: list[str] | None = None) -> list[dict[str, Any]]:
    """The lines of a training log; a last line that a kill tore is left out.

    Args:
        path: a `log.jsonl`.
        lost: receives a sentence about each line that cannot be read; without it the first such line is refused.

    Returns:
        One dict a line: `step`, `kind` ("training" or "validation"), `loss` in nats per token, and for training
        `learning_rate`, `gradient_norm`, `tokens` and `seconds` so far.

    Raises:
        CheckpointError: the file is missing, no plain file, or has a damaged line.
    """
    path = a_path("path", path)
    with open_plain(path) as file:
        *whole, torn = file.read().split(b"\n")
    # A kill leaves the beginning of a line; where its brace is there, the line's end was changed.
    if b"}" in torn[:-1]:
        whole.append(torn)
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(whole, start=1):
        try:
            lines.append(_parse(text, lines, f"{path}, line {number},"))
        except CheckpointError as error:
            if lost is None:
                raise
            lost.append(str(error))
    return lines


def about_lost(path: Path, lost: list[str], lines: list[dict[str, Any]]) -> list[str]:
    """One sentence about the lines of a log that cannot be read; none where all can."""
    if not lost:
        return []
    count = count_of(len(lost), "lines")
    return [f"{count} of {path} cannot be read, and {len(lines)} can; the first reason: {lost[0]}"]


def _parse(text: bytes, before: list[dict[str, Any]], where: str) -> dict[str, Any]:
    """A line of the log; one that is damaged, repeats one of those before it, or belongs before them is refused."""
    checked = _CHECKED.fullmatch(text)
    if not checked or int(checked[2], 16) != zlib.crc32(checked[1]):
        raise CheckpointError(f"{where} does not match its CRC-32, so it was changed or damaged")
    line = parse_json(checked[1] + b"}", where)
    if not isinstance(line, dict) or type(line.get("step")) is not int:
        raise CheckpointError(f"{where} has no step; it is not a line of a training log")
    step = line["step"]
    last = before[-1]["step"] if before else 0
    if step < last:
        raise CheckpointError(
            f"{where} is of step {step} and comes after step {last}, so lines were moved or doubled"
        )
    same_step = takewhile(lambda earlier: earlier["step"] == step, reversed(before))
    if any(earlier.get("kind") == line.get("kind") for earlier in same_step):
        raise CheckpointError(
            f"{where} is a second line of step {step} and its kind, so it was doubled"
        )
    return line


def _render(line: dict[str, Any]) -> str:
    text = json.dumps(line)[:-1]
    return f'{text}, "{CHECK}": "{zlib.crc32(text.encode()):08x}"}}\n'
