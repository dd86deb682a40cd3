"""Unfinished files of killed writers, and whether a folder may be written into.

A writer locks its unfinished file or folder, and the lock ends with its process. A later writer removes unfinished
files without a lock and leaves those of running writers alone."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from regard.errors import CheckpointError, OccupiedError, RegardError

_ENDING = r"\.writing-[0-9a-f]{8}"  # random digits


@contextmanager
def unfinished(path: Path, *, folder: bool = False) -> Generator[Path]:
    """Make a new empty file or folder beside `path` under a hidden name, locked until the block ends."""
    while True:
        aside = path.parent / f".{path.name}.writing-{secrets.token_hex(4)}"
        if folder:
            aside.mkdir()
        else:
            os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        descriptor = _open_locked(aside, wait=True)
        if descriptor is None:
            break
        with suppress(FileNotFoundError):  # another writer removed it before it was locked
            if os.path.samestat(os.fstat(descriptor), os.lstat(aside)):
                break
        os.close(descriptor)
    try:
        yield aside
    finally:
        if descriptor is not None:
            os.close(descriptor)


def remove_leftovers(path: Path) -> None:
    """Remove unfinished files of killed writers of `path`; those of other files and of running writers stay."""
    if not path.parent.is_dir():
        return
    ours = re.compile(re.escape(f".{path.name}") + _ENDING)
    for name in os.listdir(path.parent):
        leftover = path.parent / name
        if not ours.fullmatch(name) or leftover.is_symlink():
            continue
        with suppress(OSError):
            descriptor = _open_locked(leftover, wait=False)
            if descriptor is None:
                continue
            try:
                if leftover.is_dir():
                    shutil.rmtree(leftover, ignore_errors=True)
                else:
                    leftover.unlink()
            finally:
                os.close(descriptor)


def _open_locked(path: Path, *, wait: bool) -> int | None:
    """Open and lock a file or folder; None if another process holds the lock, or the system has none."""
    try:
        import fcntl
    except ImportError:
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


Reader = Callable[[Path], object]  # reads one file; raises a RegardError if regard did not write it


def check_ours(
    folder: Path, marks: Mapping[str, Reader], what: str, *, aside: tuple[str, ...] = ()
) -> None:
    """Refuse a folder with content that regard did not write; a file name alone is not enough.

    Args:
        folder: the folder; a missing or empty one is accepted.
        marks: readers by file name; the folder is accepted if one of these files can be read.
        what: what such a folder holds, for the message.
        aside: names of files that may exist before the first mark.

    >>> check_ours(Path("nowhere"), {}, "run")
    """
    if not folder.is_dir():
        return
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be read: {error.strerror}; choose another folder"
        ) from error
    any_mark = "|".join(re.escape(mark) for mark in marks)
    leftover = re.compile(rf"\.({any_mark}){_ENDING}")
    present = [name for name in names if name not in aside and not leftover.fullmatch(name)]
    if not present:
        return

    reasons = []
    for name, read in marks.items():
        if name not in present:
            continue
        try:
            read(folder / name)
            return
        except RegardError as error:
            reasons.append(str(error))

    listed = ", ".join(present[:3])
    if len(present) > 3:
        listed += f" and {len(present) - 3} more"
    why = f" ({'; '.join(reasons)})" if reasons else ""
    raise OccupiedError(
        f"{folder} holds {listed} and no {what} of regard{why}, so nothing is written there; choose a new or an empty "
        f"folder"
    )
