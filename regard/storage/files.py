"""Atomic reading and writing of files and folders.

Content is written under a temporary name, synced and renamed, so a reader sees either the old or the new content.
Reading checks size, type and name first.
"""

import os
import re
import shutil
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from regard.errors import CheckpointError, OccupiedError, RegardError
from regard.storage.ownership import remove_leftovers, unfinished

TEXT_LIMIT = 64 * 2**20  # bytes; a tokeniser of 250,000 words needs about 20 MiB
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_name(name: object, source: str | Path) -> str:
    """The name of a file directly inside a folder, checked: not a path, not hidden, plain ASCII letters.

    >>> check_name("tokeniser.json", "config.json")
    'tokeniser.json'
    """
    if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
        raise CheckpointError(
            f"{source} names the file {str(name)[:80]!r}; a name has 1 to 128 letters, digits, '.', '_' or '-' "
            f"and starts with a letter or digit"
        )
    return name


# Reading


@contextmanager
def open_plain(path: Path, *, links: bool = False) -> Generator[BufferedReader]:
    """A regular file, open for reading in the block; folders, pipes, devices and, unless `links`, links are refused."""
    if "\0" in str(path):
        raise CheckpointError(f"{str(path)[:200]!r} cannot be read: a path holds no NUL")

    # O_NONBLOCK: opening a pipe must not wait for its writer. Systems without a flag do not need it.
    names = ["O_NONBLOCK", "O_BINARY"]
    if not links:
        names.append("O_NOFOLLOW")
    flags = os.O_RDONLY
    for name in names:
        flags |= getattr(os, name, 0)

    try:
        if not links and path.is_symlink():
            raise CheckpointError(
                f"{path} is a symbolic link; only regular files are read, so copy its target there"
            )
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CheckpointError(f"{path} is not a regular file")
            yield file
    # Reading may fail inside the block: a disk does, and /proc/self/mem, which only looks regular.
    except OSError as error:
        raise CheckpointError(
            f"{str(path)[:200]} cannot be read: {error.strerror or error}"
        ) from error


def read_bytes(path: Path, limit: int = TEXT_LIMIT, *, links: bool = False) -> bytes:
    """The content of a regular file of at most `limit` bytes."""
    with open_plain(path, links=links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise CheckpointError(
                f"{path} has {size} bytes; a file of this kind has at most {limit}"
            )
        return file.read(size)


# Writing


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    if os.name == "nt":  # Windows has no such call for folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(
    path: Path, content: bytes | Callable[[BinaryIO], None], *, durable: bool = True
) -> None:
    """Write a file atomically: if the process is killed, the file has the old content or the new, never a mixture.

    Args:
        path: the file, new or existing.
        content: its bytes, or a function that writes them.
        durable: wait until it is on the disk; False inside `write_folder`, which waits once at the end.

    Raises:
        CheckpointError: the file could not be written; the old one is unchanged and no temporary file is left.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace_file(Path(folder) / "note.txt", b"new")
    ...     (Path(folder) / "note.txt").read_bytes()
    b'new'
    """
    requested = Path(path)
    path = Path(os.path.abspath(path))
    with _saving(requested):
        remove_leftovers(path)
        with unfinished(path) as aside:
            try:
                with open(aside, "wb") as file:
                    if isinstance(content, bytes):
                        file.write(content)
                    else:
                        content(file)
                    file.flush()
                    if durable:
                        os.fsync(file.fileno())
                os.replace(aside, path)
            except BaseException:
                aside.unlink(missing_ok=True)
                raise
        if durable:
            sync(path.parent)


def write_folder(folder: Path, writer: Callable[[Path], None], *, replace: bool = False) -> None:
    """Write a folder atomically.

    `writer` fills a hidden folder beside it, which is synced and renamed. With `replace`, the old folder is first
    renamed to a second hidden name, where `existing_folder` finds it if the process is killed between the two
    renames. Leftovers of killed writers are removed.

    Raises:
        CheckpointError: the folder exists (without `replace`) or could not be written; an old one is unchanged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     write_folder(Path(parent) / "new", lambda aside: sync(aside))
    ...     (Path(parent) / "new").is_dir()
    True
    """
    requested = folder
    folder = Path(os.path.abspath(folder))
    with _saving(requested):
        folder.parent.mkdir(parents=True, exist_ok=True)
        previous = _previous(folder)
        remove_leftovers(folder)
        if previous.exists() and not folder.exists():
            os.rename(previous, folder)
        shutil.rmtree(previous, ignore_errors=True)
        if os.path.lexists(folder) and not replace and not _is_empty_folder(folder):
            raise OccupiedError(
                f"{requested} exists already; choose another folder or delete it first"
            )

        with unfinished(folder, folder=True) as aside:
            try:
                with naming(requested, aside):
                    writer(aside)
                _sync_tree(aside)
                if os.path.lexists(folder):
                    os.rename(folder, previous)
                os.rename(aside, folder)
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                if previous.exists() and not folder.exists():
                    os.rename(previous, folder)
                raise
        sync(folder.parent)
        shutil.rmtree(previous, ignore_errors=True)


def existing_folder(folder: Path) -> Path:
    """The path of the last complete content of a folder, also if its replacement was interrupted.

    >>> existing_folder(Path("nowhere"))
    PosixPath('nowhere')
    """
    previous = _previous(Path(os.path.abspath(folder)))
    was_interrupted = not os.path.lexists(folder) and os.path.isdir(previous)
    return previous if was_interrupted else folder


@contextmanager
def _saving(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(
            f"{path} could not be saved: {reason}; no partial file was left"
        ) from error


@contextmanager
def naming(requested: Path, hidden: Path) -> Generator[None]:
    """Inside the block, errors name the path that the user gave instead of the hidden one.

    >>> with naming(Path("model"), Path(".model.previous")):
    ...     raise CheckpointError(".model.previous/config.json is damaged")
    Traceback (most recent call last):
    regard.errors.CheckpointError: model/config.json is damaged
    """
    try:
        yield
    except RegardError as error:
        message = str(error)
        if str(hidden) not in message or requested == hidden:
            raise
        renamed = message.replace(str(hidden), str(requested))
        raise type(error)(renamed) from error.__cause__


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _previous(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.previous"


def _sync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))
