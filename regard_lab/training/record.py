"""What a run reports: a checked line of JSON for every few steps, its curves, events, TensorBoard, and time."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from time import monotonic, process_time
from typing import Any, NamedTuple

from regard.arguments import a_path, count_of
from regard.errors import CheckpointError, DataError, MissingPackageError
from regard.reprs import brief
from regard.storage.files import open_plain, replace_file, sync
from regard.storage.sealed_json import parse_json
from regard_lab.bench.report import new_picture

CHECK = "crc32"
_CHECKED = re.compile(rb'(.*), "crc32": "([0-9a-f]{8})"\}', re.DOTALL)


class ReadableLog(NamedTuple):
    """The lines of a log that can be read, and a sentence about each that cannot."""

    lines: list[dict[str, Any]]
    lost: list[str]

    def report(self, path: Path) -> list[str]:
        """One sentence about what is lost; none where nothing is."""
        if not self.lost:
            return []
        count = count_of(len(self.lost), "lines")
        return [f"{count} of {path} cannot be read, and {len(self.lines)} can; the first reason: {self.lost[0]}"]


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
        before = read_what_is_left(path) if path.exists() else ReadableLog([], [])
        self.notes = before.report(path)
        replace_file(path, "".join(_render(line) for line in before.lines if line["step"] <= step).encode())

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
    log = read_what_is_left(path)
    if log.lost:
        raise CheckpointError(log.lost[0])
    return log.lines


def read_what_is_left(path: str | Path) -> ReadableLog:
    """The readable lines of a damaged log.

    Raises:
        CheckpointError: the file is missing, or no plain file.
    """
    path = a_path("path", path)
    with open_plain(path) as file:
        *whole, torn = file.read().split(b"\n")
    log = ReadableLog([], [])
    if b"}" in torn[:-1]:  # a kill leaves the beginning of a line, so here the line's end was changed
        whole.append(torn)
    for number, text in enumerate(whole, start=1):
        try:
            log.lines.append(_parse(text, log.lines, f"{path}, line {number},"))
        except CheckpointError as error:
            log.lost.append(str(error))
    return log


def _parse(text: bytes, before: list[dict[str, Any]], where: str) -> dict[str, Any]:
    """A line of the log; one that is damaged, repeats one of those before it, or belongs before them is refused."""
    checked = _CHECKED.fullmatch(text)
    if not checked or int(checked[2], 16) != zlib.crc32(checked[1]):
        raise CheckpointError(f"{where} does not match its CRC-32, so it was changed or damaged")
    line = parse_json(checked[1] + b"}", where)
    if not isinstance(line, dict) or type(line.get("step")) is not int:
        raise CheckpointError(f"{where} has no step; it is not a line of a training log")
    step, last = line["step"], before[-1]["step"] if before else 0
    if step < last:
        raise CheckpointError(f"{where} is of step {step} and comes after step {last}, so lines were moved or doubled")
    same = takewhile(lambda one: one["step"] == step, reversed(before))
    if any(one.get("kind") == line.get("kind") for one in same):
        raise CheckpointError(f"{where} is a second line of step {step} and its kind, so it was doubled")
    return line


def _render(line: dict[str, Any]) -> str:
    text = json.dumps(line)[:-1]
    return f'{text}, "{CHECK}": "{zlib.crc32(text.encode()):08x}"}}\n'


def draw_curves(log_path: str | Path, png_path: str | Path) -> list[str]:
    """Draw the losses in nats per token, and below them the learning rate, over the steps.

    Lines of the log that cannot be read are left out, and the picture shows how many.

    Args:
        log_path: the `log.jsonl` of a run.
        png_path: where the picture goes; an old one is replaced.

    Returns:
        One sentence about the lines that cannot be read; none where all can.

    Raises:
        DataError: there is no line to draw yet.
        CheckpointError: the log is missing.
        MissingPackageError: matplotlib is not installed.

    >>> draw_curves("nowhere/log.jsonl", "curves.png")
    Traceback (most recent call last):
    regard.errors.CheckpointError: nowhere/log.jsonl cannot be read: No such file or directory
    """
    log = read_what_is_left(log_path)
    lost = log.report(Path(log_path))
    training, validation = (
        [line for line in log.lines if line.get("kind") == kind and _is_number(line.get("loss"))]
        for kind in ("training", "validation")
    )
    if not training and not validation:
        lines = count_of(len(log.lines), "lines")
        raise DataError("; ".join([f"{log_path} has no loss in its {lines}, so there is no curve to draw yet", *lost]))
    with new_picture(Path(png_path), 7, 5) as figure:
        losses, rates = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        _draw_losses(losses, training, validation)
        rates.plot(*_points(training, "learning_rate"), color="#666666", linewidth=1.2)
        rates.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
        rates.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        for axes in (losses, rates):
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        if lost:
            figure.suptitle(f"left out: {count_of(len(log.lost), 'damaged lines')} of the log", fontsize="small")
    return lost


def _draw_losses(axes: Any, training: list[dict[str, Any]], validation: list[dict[str, Any]]) -> None:
    marker = "." if len(training) == 1 else None  # one point makes no line
    axes.plot(*_points(training, "loss"), color="#9db8d9", linewidth=1.2, marker=marker, label="training, as minimised")
    if validation:
        best = min(validation, key=lambda line: line["loss"])
        label = f"validation, best {best['loss']:.3g} at step {best['step']}"
        axes.plot(*_points(validation, "loss"), color="#b3402a", marker="o", markersize=3, label=label)
        axes.plot(best["step"], best["loss"], color="#b3402a", marker="o", markersize=7)
    axes.set(ylabel="loss (nats per token)")
    axes.legend(frameon=False)


def _points(lines: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    drawn = [line for line in lines if _is_number(line.get(name))]
    return [line["step"] for line in drawn], [line[name] for line in drawn]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@brief
@dataclass(frozen=True)
class Started:
    """Training begins or goes on: `step` steps are done; `notes` list what differs harmlessly from before.

    `steps`, here and in the other events, is the number of the last step, as planned now; None while it is not known.
    """

    step: int
    steps: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepDone:
    """One optimiser step: loss in nats per target token, and the gradients' norm before clipping."""

    step: int
    steps: int | None
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    seconds_left: float | None


@dataclass(frozen=True)
class StepSkipped:
    """A loss or gradient was not finite, so the weights were left as they were; `in_a_row` such steps so far."""

    step: int
    steps: int | None
    in_a_row: int


@dataclass(frozen=True)
class Validated:
    """The plain cross entropy over the validation batches, in nats per token; `is_best` of all so far."""

    step: int
    loss: float
    is_best: bool


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint is on the disk."""

    step: int
    folder: str
    is_best: bool


@dataclass(frozen=True)
class Noticed:
    """Something went wrong that stops nothing: a copy of the log that cannot be written, for instance."""

    step: int
    text: str


Event = Started | StepDone | StepSkipped | Validated | Saved | Noticed
Progress = Callable[[Event], None]
Showing = Callable[[], AbstractContextManager[Progress | None]]
"""Makes a context that gives a function for the events of a training."""


class TrainingClock:
    """Seconds of this run on the wall and on the processor, with those of the sessions before.

    >>> TrainingClock(wall_before=60.0, cpu_before=50.0).wall() >= 60.0
    True
    """

    def __init__(self, wall_before: float = 0.0, cpu_before: float = 0.0) -> None:
        self._wall_start = monotonic() - wall_before
        self._cpu_start = process_time() - cpu_before
        self._last_tick = monotonic()
        self._seconds = self._tokens = 0.0  # averaged over the last twenty steps or so
        self._long_seconds = self._long_steps = 0.0  # over two hundred, for the seconds left, which people read

    def wall(self) -> float:
        """Seconds on the wall clock."""
        return monotonic() - self._wall_start

    def cpu(self) -> float:
        """Seconds on the processor, summed over this process's threads."""
        return process_time() - self._cpu_start

    def restart_step(self) -> None:
        """Begin a step: the time since the last one (a validation, a save) does not count."""
        self._last_tick = monotonic()

    def step_done(self, tokens: int) -> None:
        """Note the tokens of one step for the two estimates below."""
        seconds = monotonic() - self._last_tick
        self._seconds, self._tokens = 0.95 * self._seconds + seconds, 0.95 * self._tokens + tokens
        self._long_seconds, self._long_steps = 0.995 * self._long_seconds + seconds, 0.995 * self._long_steps + 1.0
        self.restart_step()

    def tokens_per_second(self) -> float:
        """Over the last twenty steps or so."""
        return self._tokens / max(self._seconds, 1e-9)

    def seconds_left(self, steps_left: int | None, minutes: float | None) -> float | None:
        """Until the steps or the minutes are used up, whichever comes first; None if neither is known."""
        ends = [] if steps_left is None else [steps_left * self._long_seconds / max(self._long_steps, 1.0)]
        ends += [] if minutes is None else [max(0.0, 60 * minutes - self.wall())]
        return min(ends, default=None)


class Record:
    """The log, its copy for TensorBoard and the events; silent on processes other than the main one.

    Args:
        tensorboard: write for TensorBoard too.

    Raises:
        MissingPackageError: TensorBoard is wanted and not installed.
    """

    def __init__(self, folder: Path, *, is_main: bool, progress: Progress | None, tensorboard: bool) -> None:
        if tensorboard:
            _board_writer()
        self._folder, self._is_main, self._progress, self._tensorboard = folder, is_main, progress, tensorboard
        self._step = 0  # of the last line
        self._log: Log | None = None
        self._board: Any = None

    def open(self, step: int) -> list[str]:
        """Begin to write after a step; lines of later steps, left by a killed session, are cut.

        Returns:
            A sentence about lines that are lost.
        """
        if not self._is_main:
            return []
        self._step = step
        self._log = Log(self._folder / "log.jsonl", step)
        if self._tensorboard:
            folder = self._folder / "tensorboard"
            try:
                self._board = _board_writer()(str(folder), purge_step=step + 1)  # which hides points of later steps
            except OSError as error:
                raise CheckpointError(
                    f"{folder} cannot be written for TensorBoard: {error.strerror or error}; remove what stands there, "
                    f"or leave the option out"
                ) from error
        return self._log.notes

    def write(self, step: int, kind: str, seconds: float, **values: float | None) -> None:
        """One line of the log, and the same numbers over the steps as `training/loss` and so on."""
        line = {"step": step, "kind": kind, **values, "seconds": round(seconds, 3)}
        self._step = step
        if self._log is not None:
            self._log.write(line)
        for name, value in line.items():
            if name not in ("step", "kind") and value is not None:
                self._on_board("add_scalar", f"{kind}/{name}", value, step)

    def report(self, event: Event) -> None:
        """Hand an event to the progress function."""
        if self._progress is not None and self._is_main:
            self._progress(event)

    def sync(self) -> None:
        """Wait until what was written is on the disk, so that no checkpoint is newer than its log."""
        if self._log is not None:
            self._log.sync()
        self._on_board("flush")

    def close(self) -> None:
        if self._board is not None:
            with suppress(Exception):  # the log has every number
                self._board.close()

    def _on_board(self, method: str, *values: Any) -> None:
        """Call TensorBoard's writer; if that fails, the copy of the log ends and an event reports it."""
        if self._board is None:
            return
        try:
            getattr(self._board, method)(*values)
        except Exception as error:  # whatever its writer raises: the copy stops no training, the log has every number
            self._board = None
            self.report(
                Noticed(self._step, f"nothing more is written for TensorBoard: {type(error).__name__}: {error}")
            )


def _board_writer() -> Any:
    """The class that writes for TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingPackageError(
            "the option tensorboard needs the package tensorboard; pip install tensorboard, or leave the option out: "
            "the same numbers are in log.jsonl"
        ) from error
    return SummaryWriter
