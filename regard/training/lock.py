"""One trainer for one folder."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import CheckpointError, UnsupportedError


@contextmanager
def folder_lock(folder: Path) -> Generator[None]:
    """Hold a folder for this process; the system lets go of it when the process ends, however it ends.

    The file `lock` stays, since removing it would let two trainers lock two different files; only a living
    process that has it open counts, so the lock of a killed trainer is never in the way.

    Raises:
        CheckpointError: another trainer holds it.
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
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written to: {error.strerror}; choose another folder") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise CheckpointError(
                f"{folder} is being trained by process {owner}; wait until it ends, or choose another folder"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)
