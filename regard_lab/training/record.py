"""What a run reports: events for a progress display, lines of the log, the same numbers for TensorBoard, and time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, process_time
from typing import Any

from regard.errors import CheckpointError, MissingPackageError
from regard.reprs import brief
from regard_lab.training.log import Log


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
