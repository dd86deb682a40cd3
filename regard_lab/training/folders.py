"""Whether a run may be written into a folder, before anything is written there."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from regard.arguments import a_path
from regard.errors import CheckpointError, OccupiedError, UnsupportedError
from regard.storage.ownership import check_ours
from regard.storage.sealed_json import read_sealed
from regard_lab.models.storage import CHECKPOINTS_FILE, read_checkpoints
from regard_lab.training.identity import RUN_FILE

SETTINGS_FILE = "settings.json"  # what the commands keep of their options


def check_run_folder(folder: str | Path) -> None:
    """Raise a CheckpointError unless a run may be written there: the folder is new, empty, or a run of ours.

    A run is recognised by a sealed file, not by file names. `train` checks this before it writes anything, and the
    commands before they read their data. Raises an UnsupportedError on a system that trains nothing, such as Windows.

    >>> check_run_folder("nowhere")
    """
    check_that_folders_lock()
    folder = a_path("folder", folder)
    if folder.exists() and not folder.is_dir():
        raise OccupiedError(f"{folder} is a file, and a run is a folder; choose another name")
    if (folder / "config.json").exists():
        raise OccupiedError(
            f"{folder} holds a saved model, which a run would hide; choose another folder"
        )
    marks = {
        RUN_FILE: read_sealed,
        CHECKPOINTS_FILE: lambda path: read_checkpoints(path.parent),
        SETTINGS_FILE: read_sealed,
    }
    check_ours(folder, marks, "run", aside=("lock",))


def check_that_folders_lock() -> None:
    """Raise an UnsupportedError where no folder can be locked, as on Windows: nothing is trained there."""
    try:
        import fcntl  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            "training locks its folder with fcntl, which this system lacks; use a POSIX system (on Windows: WSL)"
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder and its parents unless they exist; a CheckpointError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(folder, error) from error


def check_writable(folder: Path) -> None:
    """Raise a CheckpointError unless the folder can be made and written into; nothing is left there.

    >>> check_writable(Path("nowhere"))
    >>> Path("nowhere").exists()
    False
    """
    made: list[Path] = []
    try:
        absent = [path for path in (folder, *folder.parents) if not path.exists()]
        for path in reversed(absent):
            path.mkdir()
            made.append(path)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _not_written(folder, error) from error
    finally:
        for path in reversed(made):
            # Another process may have written into it.
            with suppress(OSError):
                path.rmdir()


def _not_written(folder: Path, error: OSError) -> CheckpointError:
    """The refusal of a folder for a run, with the outer folder that takes no new folders."""
    if folder.exists():
        return CheckpointError(
            f"{folder} cannot be written into ({error.strerror}); choose another folder"
        )
    outer = next((parent for parent in folder.parents if parent.exists()), folder.parent)
    return CheckpointError(
        f"{folder} cannot be made, since {outer} takes no new folder ({error.strerror}); choose another folder"
    )
