"""The numbers of the log for TensorBoard, for those who watch their runs there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.errors import CheckpointError, MissingPackageError


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
