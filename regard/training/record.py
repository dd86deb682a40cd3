"""What a run writes down and tells while it works: its log, the same for TensorBoard, and events."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from regard.training.events import Event, Noticed, Progress
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
        """Hand an event to whoever listens."""
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
        """Do something with TensorBoard's copy of the log; where that fails it ends, and this is told."""
        if self._board is None:
            return
        try:
            act(self._board)
        except Exception as error:  # whatever its writer says: the copy stops no training, the log has every number
            self._board = None
            self.tell(Noticed(self._step, f"nothing more is written for TensorBoard: {type(error).__name__}: {error}"))
