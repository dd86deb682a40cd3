"""What a writer leaves aside until it renames it into place, and which of that a kill left behind.

A writer holds its unfinished file or folder under a lock that ends with its process. So a later writer can tell
what a kill left, which it removes, from what another writer is still writing, which it leaves alone.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

_DIGITS = 8  # hexadecimal, random


@contextmanager
def unfinished(path: Path, *, folder: bool = False) -> Generator[Path]:
    """A new empty file or folder beside `path` under a hidden name, which is this writer's until the block ends.

    Raises:
        OSError: it could not be made.
    """
    while True:
        aside = path.parent / f"{_prefix(path)}{secrets.token_hex(_DIGITS // 2)}"
        if folder:
            aside.mkdir()
        else:
            os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        descriptor = _open_locked(aside, wait=True)
        if descriptor is None or _is_same(descriptor, aside):
            break
        os.close(descriptor)  # another writer removed it before it was locked
    try:
        yield aside
    finally:
        if descriptor is not None:
            os.close(descriptor)


def remove_leftovers(path: Path) -> None:
    """Remove what killed writers of `path` left beside it, and nothing of another file or of a living writer."""
    ours = re.compile(re.escape(_prefix(path)) + rf"[0-9a-f]{{{_DIGITS}}}")
    for name in os.listdir(path.parent) if path.parent.is_dir() else ():
        if ours.fullmatch(name):
            _remove_abandoned(path.parent / name)


def _remove_abandoned(leftover: Path) -> None:
    """Remove an unfinished file or folder, unless its writer lives or the system cannot tell."""
    with suppress(OSError):
        if leftover.is_symlink():
            return
        descriptor = _open_locked(leftover, wait=False)
        if descriptor is None:
            return
        try:
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink()
        finally:
            os.close(descriptor)


def _prefix(path: Path) -> str:
    return f".{path.name}.writing-"


def _open_locked(path: Path, *, wait: bool) -> int | None:
    """Open and lock a file or folder; None where another process holds it, or the system has no such locks."""
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


def _is_same(descriptor: int, path: Path) -> bool:
    """Does the path still name what is open?"""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False
