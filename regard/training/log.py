"""`log.jsonl`: one JSON object a line, in the order of the steps, no step twice, whatever was killed when."""

import json
import math
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard.errors import CheckpointError
from regard.storage.files import open_plain, replace_file, sync
from regard.storage.sealed_json import parse_json


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
        # Every line up to a checkpoint was synced before it, so a line that cannot be read is a later one.
        lines = _readable_lines(path) if path.exists() else []
        replace_file(path, "".join(_render(line) for line in lines if line["step"] <= step).encode())

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
        CheckpointError: missing, or a line other than the last is no such object.
    """
    path = Path(path)
    return [_parse(line, path, number) for number, line in _whole_lines(path)]


def _whole_lines(path: Path) -> list[tuple[int, bytes]]:
    with open_plain(path) as file:
        *whole, _torn = file.read().split(b"\n")
    return list(enumerate(whole, start=1))


def _readable_lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    for number, text in _whole_lines(path):
        try:
            lines.append(_parse(text, path, number))
        except CheckpointError:
            break
    return lines


def _parse(text: bytes, path: Path, number: int) -> dict[str, Any]:
    line = parse_json(text, f"{path}, line {number},")
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        raise CheckpointError(f"{path}, line {number}, has no step; it is not a line of a training log")
    return line


def _render(line: dict[str, Any]) -> str:
    return json.dumps(line) + "\n"
