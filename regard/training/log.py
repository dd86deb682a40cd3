"""`log.jsonl`: one JSON object a line, in the order of the steps, no step twice, whatever was killed when.

Each line ends with a CRC-32 of what stands before it, so that a changed byte is noticed, and one damaged line
costs no other.
"""

import json
import math
import re
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import CheckpointError
from regard.kinds import a_path
from regard.storage.files import open_plain, replace_file, sync
from regard.storage.sealed_json import parse_json

CHECK = "crc32"
# The keys of lines that were written before lines had a check; a line without one that has others is damaged.
OLDER = frozenset({"step", "kind", "loss", "learning_rate", "gradient_norm", "tokens", "seconds"})
_CHECKED = re.compile(rb'(.*), "crc32": "([0-9a-f]{8})"\}', re.DOTALL)


class ReadableLog(NamedTuple):
    """The lines of a log that can be read, and a sentence about each that cannot."""

    lines: list[dict[str, Any]]
    lost: list[str]

    def report(self, path: Path) -> list[str]:
        """One sentence about what is lost; none where nothing is."""
        if not self.lost:
            return []
        count = "1 line" if len(self.lost) == 1 else f"{len(self.lost)} lines"
        return [f"{count} of {path} cannot be read, and {len(self.lines)} can; the first reason: {self.lost[0]}"]


class Log:
    """The log of a run, opened at a step: lines of later steps, left by a killed session, are cut.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = Log(Path(folder) / "log.jsonl", step=0)
    ...     log.write({"step": 10, "kind": "training", "loss": 2.5})
    ...     read_log(Path(folder) / "log.jsonl")
    [{'step': 10, 'kind': 'training', 'loss': 2.5}]
    """

    def __init__(self, path: Path, step: int) -> None:
        self._path = path
        found = read_what_is_left(path) if path.exists() else ReadableLog([], [])
        self.notes = found.report(path)
        """What to say about lines that were there and cannot be read; the others are kept."""
        replace_file(path, "".join(_render(line) for line in found.lines if line["step"] <= step).encode())

    def write(self, line: dict[str, Any]) -> None:
        """Add a line; a number that JSON does not have (an infinite loss) is written as null."""
        clean = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in line.items()
        }
        with self._writing(), open(self._path, "a", encoding="utf-8") as file:
            file.write(_render(clean))

    def sync(self) -> None:
        """Wait until the lines are on the disk, so that no checkpoint is newer than its log."""
        with self._writing():
            sync(self._path)

    def close(self) -> None:
        """Nothing is held open between lines."""

    @contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"{self._path} could not be written: {error.strerror or error}") from error


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a training log; a last line that a kill tore is left out.

    Args:
        path: a `log.jsonl`.

    Returns:
        One dict a line: `step`, `kind` ("training" or "validation"), `loss` in nats per token, and for training
        `learning_rate`, `gradient_norm`, `tokens` and `seconds` so far.

    Raises:
        CheckpointError: missing, or a line is damaged; `read_what_is_left` gives the others.
    """
    found = read_what_is_left(path)
    if found.lost:
        raise CheckpointError(found.lost[0])
    return found.lines


def read_what_is_left(path: str | Path) -> ReadableLog:
    """The readable lines of a log, whatever lies between them.

    Raises:
        CheckpointError: the file is missing, or no plain file.
    """
    path = a_path("path", path)
    with open_plain(path) as file:
        *whole, torn = file.read().split(b"\n")
    found = ReadableLog([], [])
    if b"}" in torn[:-1]:  # a kill leaves the beginning of a line, so here the line's end was changed
        whole.append(torn)
    for number, text in enumerate(whole, start=1):
        try:
            found.lines.append(_parse(text, path, number))
        except CheckpointError as error:
            found.lost.append(str(error))
    return found


def _parse(text: bytes, path: Path, number: int) -> dict[str, Any]:
    where = f"{path}, line {number},"
    checked = _CHECKED.fullmatch(text)
    if checked and int(checked[2], 16) != zlib.crc32(checked[1]):
        raise CheckpointError(f"{where} does not match its CRC-32, so it was changed or damaged")
    line = parse_json(checked[1] + b"}" if checked else text, where)
    if not isinstance(line, dict) or type(line.get("step")) is not int:
        raise CheckpointError(f"{where} has no step; it is not a line of a training log")
    if not checked and (strange := sorted(line.keys() - OLDER)):
        raise CheckpointError(f"{where} has no CRC-32 and the entry {strange[0][:40]!r}, so it was changed or damaged")
    return line


def _render(line: dict[str, Any]) -> str:
    text = json.dumps(line)[:-1]
    return f'{text}, "{CHECK}": "{zlib.crc32(text.encode()):08x}"}}\n'
