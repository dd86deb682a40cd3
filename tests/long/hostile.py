"""Files that somebody made to run code, to reach other files or to fill the memory: read in a process that is watched.

Every file is read in a fork with an audit hook, after everything harmless of its kind was read once. The hook ends the
process when anything but reading in the folder happens: an import, a compilation, a pickle, a socket, a process, a
library, or an open outside of the folder. What is left is a refusal of the family RegardError, or nothing at all.
"""

import os
import resource
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError

from .hostile_files import FILES, READERS
from .running import Found

FORBIDDEN = (
    "exec",
    "compile",
    "import",
    "pickle.find_class",
    "marshal.",
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.putenv",
    "ctypes.dlopen",
    "ctypes.call_function",
    "shutil.",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.truncate",
    "webbrowser.open",
    "urllib.Request",
)
# Guards: what a refusal takes is measured and stands in the result.
MOST_SECONDS = 10
MOST_BYTES = 4 * 2**30  # beside those that the process has
# Its first number is the size of the address space in pages.
ADDRESS_SPACE = Path("/proc/self/statm")
# Exit codes of a process that reads a hostile file.
READ = 0
REFUSED = 3
OTHER = 4
CAUGHT = 66
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def is_forbidden(event: str, arguments: tuple[Any, ...], folder: Path) -> bool:
    """Whether an event of an audit hook is more than reading a file in the folder."""
    if event == "import":
        return arguments[0] is not None and arguments[0] not in sys.modules
    if event != "open":
        return event.startswith(FORBIDDEN)
    path, _, flags = arguments
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    if isinstance(flags, int) and flags & WRITING:
        return True
    if path == "/proc/mounts":  # transformers reads it
        return False
    return not os.path.realpath(os.fsdecode(path)).startswith(f"{folder}{os.sep}")


def watch(folder: Path, report: Path) -> None:
    """From now on this process may only read files in the folder; anything else is written down and ends it."""
    out = os.open(report, os.O_WRONLY | os.O_CREAT)

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if is_forbidden(event, arguments, folder):
            os.write(out, f"{event} {str(arguments)[:150]}\n".encode(errors="replace"))
            os._exit(CAUGHT)

    sys.addaudithook(look)


def what_was_reached(name: str, harmless: Path, found: Found) -> str | None:
    """What a hostile file reached, or None where it is refused."""
    kind, make = FILES[name]
    with tempfile.TemporaryDirectory(prefix="hostile-") as place:
        folder = Path(place).resolve() / "given"
        report = Path(place).resolve() / "report"
        folder.mkdir()
        make(folder / "file")
        child = os.fork()
        if child == 0:
            _read_and_exit(READERS[kind][0], folder, harmless / kind, report)
        _, status, used = os.wait4(child, 0)
        code = os.waitstatus_to_exitcode(status)
        found.at_most("seconds of CPU for one file", used.ru_utime + used.ru_stime)
        words = report.read_text(errors="replace").strip() if report.exists() else ""
    if code == REFUSED:
        found.count("refused")
        return None
    return "it was read" if code == READ else f"ended with {code}: {words[:300]}"


def limit_time_and_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS + 1))
    pages = int(ADDRESS_SPACE.read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _read_and_exit(read: Callable[[Path], Any], folder: Path, harmless: Path, report: Path) -> None:
    """In the fork: read a harmless file of the kind, so that everything is imported; watch; read."""
    code = OTHER
    try:
        limit_time_and_memory()
        with suppress(RegardError):
            read(harmless)
        watch(folder, report)
        read(folder / "file")
        code = READ
    except RegardError as refusal:
        code = REFUSED if len(str(refusal)) < 3000 else OTHER
    except BaseException as error:
        out = os.open(report, os.O_WRONLY | os.O_CREAT)
        os.write(out, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(code)


def work(numbers: Sequence[int], folder: Path) -> Found:
    """A case is one file of `hostile_files`."""
    found = Found()
    torch.set_num_threads(1)
    for kind, (read, make) in READERS.items():
        make(folder / kind)
        with suppress(RegardError):
            read(folder / kind)  # what is imported for it is imported here
    for number in numbers:
        name = list(FILES)[number]
        found.count("files")
        reached = what_was_reached(name, folder, found)
        if reached is not None:
            found.wrong.append(f"{name}: {reached}")
    return found
