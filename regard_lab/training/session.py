"""What guards a session of training: the lock of its folder, and an orderly end on Ctrl-C and SIGTERM."""

import os
import signal
import stat
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from regard.errors import CheckpointError, UnsupportedError


@contextmanager
def folder_lock(folder: Path) -> Generator[None]:
    """Lock a folder for this process; the system releases the lock when the process ends, however it ends.

    The file `lock` is never removed, since two trainers could then lock two different files. Only a living process
    that has it open holds the lock, so a killed trainer never blocks the next one.

    Raises:
        CheckpointError: another trainer holds it, or the file cannot be made, locked or written.
        UnsupportedError: a system without such locks.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, folder_lock(Path(folder)):
    ...     (Path(folder) / "lock").exists()
    True
    """
    try:
        import fcntl
    except ImportError as error:
        raise UnsupportedError(
            "training locks its folder with fcntl, which this system lacks; use a POSIX system (on Windows: WSL)"
        ) from error
    path = folder / "lock"
    try:
        # O_NONBLOCK: a pipe in its place must not make this wait for a process at its other end.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be opened or made: {error.strerror}; choose another folder, or make room there"
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CheckpointError(f"{path} is not a plain file, so it locks nothing; remove it")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise CheckpointError(
                f"{folder} is being trained by process {owner}; wait until it ends, or choose another folder"
            ) from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be locked: {error.strerror}; choose another folder") from error
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be written: {error.strerror}; make room there, or choose another folder"
            ) from error
        yield
    finally:
        os.close(descriptor)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While entered, the first signal sets `requested`; the second raises KeyboardInterrupt at once.

    Handlers belong to the main thread: in another thread nothing is installed and `requested` stays False. The
    handlers found on entering are put back on leaving.

    >>> with Interruption() as interruption:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     interruption.requested
    True
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that Python did not install and cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
