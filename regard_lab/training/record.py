"""The log of a run, a checked line of JSON for every few steps, and its curves as a picture."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from time import monotonic, process_time
from typing import Any, NamedTuple

from regard.arguments import a_path, count_of
from regard.errors import CheckpointError, DataError, MissingPackageError
from regard.packages import install_line
from regard.reprs import brief
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
        count = count_of(len(self.lost), "lines")
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
    """The readable lines of a damaged log.

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
            line = _parse(text, path, number)
            _check_place(line, found.lines, f"{path}, line {number},")
            found.lines.append(line)
        except CheckpointError as error:
            found.lost.append(str(error))
    return found


def _check_place(line: dict[str, Any], before: list[dict[str, Any]], where: str) -> None:
    """Raise if a line repeats one of those before it, or belongs before them."""
    step, last = line["step"], before[-1]["step"] if before else 0
    if step < last:
        raise CheckpointError(f"{where} is of step {step} and comes after step {last}, so lines were moved or doubled")
    same = takewhile(lambda one: one["step"] == step, reversed(before))
    if any(one.get("kind") == line.get("kind") for one in same):
        raise CheckpointError(f"{where} is a second line of step {step} and its kind, so it was doubled")


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


def draw_curves(log_path: str | Path, png_path: str | Path) -> list[str]:
    """Draw the losses in nats per token, and below them the learning rate, over the steps.

    Lines of the log that cannot be read are left out, and the picture says how many.

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
    found = read_what_is_left(log_path)
    lost = found.report(Path(log_path))
    training, validation = (
        [line for line in found.lines if line.get("kind") == kind and _is_number(line.get("loss"))]
        for kind in ("training", "validation")
    )
    if not training and not validation:
        reason = (
            f"{log_path} has no loss in its {count_of(len(found.lines), 'lines')}, so there is no curve to draw yet"
        )
        raise DataError("; ".join([reason, *lost]))
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(f"drawing needs the package matplotlib; {install_line('lab')}") from error
    figure = Figure(figsize=(7, 5), dpi=120, layout="constrained")
    losses, rates = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    _draw_losses(losses, training, validation)
    rates.plot(*_points(training, "learning_rate"), color="#666666", linewidth=1.2)
    rates.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    rates.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    for axes in (losses, rates):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    if lost:
        figure.suptitle(f"left out: {count_of(len(found.lost), 'damaged lines')} of the log", fontsize="small")
    picture = BytesIO()
    figure.savefig(picture, format="png")
    replace_file(Path(png_path), picture.getvalue(), durable=False)  # the log can draw it again
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
    """Training begins or goes on: `step` steps are done; `notes` say what differs harmlessly from before.

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


_MEMORY = 0.95  # weight of the past in the running average of a step's seconds
_LONG = 0.995  # the same for the seconds left, which are read by people: over the last two hundred steps or so


class Clock:
    """Seconds of this run on the wall and on the processor, with those of the sessions before.

    >>> Clock(wall_before=60.0, cpu_before=50.0).wall() >= 60.0
    True
    """

    def __init__(self, wall_before: float = 0.0, cpu_before: float = 0.0) -> None:
        self._wall_start = monotonic() - wall_before
        self._cpu_start = process_time() - cpu_before
        self._last_tick = monotonic()
        self._seconds = self._tokens = self._weight = 0.0
        self._long_seconds = self._long_weight = 0.0

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
        now = monotonic()
        self._seconds = _MEMORY * self._seconds + (now - self._last_tick)
        self._tokens = _MEMORY * self._tokens + tokens
        self._weight = _MEMORY * self._weight + 1.0
        self._long_seconds = _LONG * self._long_seconds + (now - self._last_tick)
        self._long_weight = _LONG * self._long_weight + 1.0
        self._last_tick = now

    def tokens_per_second(self) -> float:
        """Over the last twenty steps or so."""
        return self._tokens / max(self._seconds, 1e-9)

    def seconds_left(self, steps_left: int | None, minutes: float | None) -> float | None:
        """Until the steps or the minutes are used up, whichever comes first; None if neither is known."""
        ends = [] if steps_left is None else [steps_left * self._long_seconds / max(self._long_weight, 1.0)]
        ends += [] if minutes is None else [max(0.0, 60 * minutes - self.wall())]
        return min(ends, default=None)

    def step_seconds(self) -> float:
        """The seconds of a step, averaged over the last twenty or so."""
        return self._seconds / max(self._weight, 1.0)


class Board:
    """Event files beside a log, with the same numbers: `training/loss`, `validation/loss` and so on over the steps.

    Args:
        folder: of the event files; earlier sessions' stay there.
        step: where the run goes on; points of later steps, left by a killed session, are hidden.

    Raises:
        MissingPackageError: TensorBoard is not installed.
        CheckpointError: the folder cannot be written.
    """

    def __init__(self, folder: Path, step: int) -> None:
        check_installed()
        from torch.utils.tensorboard import SummaryWriter

        try:
            self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1)
        except OSError as error:
            raise CheckpointError(
                f"{folder} cannot be written for TensorBoard: {error.strerror or error}; remove what stands there, or "
                f"leave the option out"
            ) from error

    def write(self, line: dict[str, Any]) -> None:
        """Add the numbers of one line of the log."""
        for name, value in line.items():
            if name not in ("step", "kind") and value is not None:
                self._writer.add_scalar(f"{line['kind']}/{name}", value, line["step"])

    def sync(self) -> None:
        """Wait until what was written is in the file."""
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def check_installed() -> None:
    """Raise a MissingPackageError if TensorBoard cannot be written for."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            "the option tensorboard needs the package tensorboard; pip install tensorboard, or leave the option out: "
            "the same numbers are in log.jsonl"
        ) from error


class Record:
    """Open from the step where a run goes on; on processes other than the main one it is silent.

    Args:
        folder: of the run.
        is_main: is this the process that writes?
        progress: a function that is handed each event.
        tensorboard: write for TensorBoard too.

    Raises:
        MissingPackageError: TensorBoard is wanted and not installed.
    """

    def __init__(self, folder: Path, *, is_main: bool, progress: Progress | None, tensorboard: bool) -> None:
        if tensorboard:
            check_installed()
        self._folder, self._is_main, self._progress, self._tensorboard = folder, is_main, progress, tensorboard
        self._step = 0  # of the last line
        self._log: Log | None = None
        self._board: Board | None = None

    def open(self, step: int) -> list[str]:
        """Begin to write after a step; lines of later steps, left by a killed session, are cut.

        Returns:
            What to say about lines that are lost.
        """
        if not self._is_main:
            return []
        self._step = step
        self._log = Log(self._folder / "log.jsonl", step)
        if self._tensorboard:
            self._board = Board(self._folder / "tensorboard", step)
        return self._log.notes

    def write(self, step: int, kind: str, seconds: float, **values: float | None) -> None:
        """One line of the log."""
        line = {"step": step, "kind": kind, **values, "seconds": round(seconds, 3)}
        if self._log is not None:
            self._log.write(line)
        self._step = step
        self._on_board(lambda board: board.write(line))

    def tell(self, event: Event) -> None:
        """Hand an event to the progress function."""
        if self._progress is not None and self._is_main:
            self._progress(event)

    def sync(self) -> None:
        """Wait until what was written is on the disk, so that no checkpoint is newer than its log."""
        if self._log is not None:
            self._log.sync()
        self._on_board(Board.sync)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
        if self._board is not None:
            with suppress(Exception):  # the log has every number
                self._board.close()

    def _on_board(self, act: Callable[[Board], None]) -> None:
        """Do something with TensorBoard's copy of the log; if that fails, the copy ends and an event says so."""
        if self._board is None:
            return
        try:
            act(self._board)
        except Exception as error:  # whatever its writer says: the copy stops no training, the log has every number
            self._board = None
            self.tell(Noticed(self._step, f"nothing more is written for TensorBoard: {type(error).__name__}: {error}"))
