"""What a run writes down and tells while it works: its log, the same for TensorBoard, and events."""

from __future__ import annotations

from pathlib import Path

from regard.training.events import Event, Progress
from regard.training.log import Log
from regard.training.tensorboard import Board, check_installed


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
        self._writers: list[Log | Board] = []

    def open(self, step: int) -> None:
        """Begin to write after a step; lines of later steps, left by a killed session, are cut."""
        if self._is_main:
            self._writers.append(Log(self._folder / "log.jsonl", step))
            if self._tensorboard:
                self._writers.append(Board(self._folder / "tensorboard", step))

    def write(self, step: int, kind: str, seconds: float, **values: float | None) -> None:
        """One line of the log."""
        for writer in self._writers:
            writer.write({"step": step, "kind": kind, **values, "seconds": round(seconds, 3)})

    def tell(self, event: Event) -> None:
        """Hand an event to whoever listens."""
        if self._progress is not None and self._is_main:
            self._progress(event)

    def sync(self) -> None:
        """Wait until what was written is on the disk, so that no checkpoint is newer than its log."""
        for writer in self._writers:
            writer.sync()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
