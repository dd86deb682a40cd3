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
# a guard: what a refusal takes is measured and stands in the result
SECONDS, MEMORY = (
    10,
    4 * 2**30,
)
# its first number is the size of the address space in pages
ADDRESS_SPACE = Path("/proc/self/statm")
REFUSED = 3
READ = 0
OTHER = 4
CAUGHT = 66


def watch(folder: Path, told: Path) -> None:
    """From now on this process may only read files in the folder; anything else is written down and ends it."""
    inside = str(folder)
    out = os.open(told, os.O_WRONLY | os.O_CREAT)

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not isinstance(path, str | bytes | os.PathLike):
                return
            name = os.path.realpath(os.fsdecode(path))
            writes = isinstance(flags, int) and flags & (
                os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
            )
            if (
                name.startswith(inside + os.sep) or path == "/proc/mounts"
            ) and not writes:  # as transformers does
                return
        elif event == "import":
            if arguments[0] in sys.modules:
                return
        elif not event.startswith(FORBIDDEN):
            return
        if event == "import" and arguments[0] is None:
            return
        os.write(out, f"{event} {str(arguments)[:150]}\n".encode(errors="replace"))
        os._exit(CAUGHT)

    sys.addaudithook(look)


def judge(name: str, harmless: Path, found: Found) -> str | None:
    """What a hostile file reached, or None."""
    kind, make = FILES[name]
    with tempfile.TemporaryDirectory(prefix="hostile-") as place:
        folder = Path(place).resolve() / "given"
        told = Path(place).resolve() / "told"
        folder.mkdir()
        make(folder / "file")
        child = os.fork()
        if child == 0:
            _read(READERS[kind][0], folder, harmless / kind, told)
        _, status, used = os.wait4(child, 0)
        code = os.waitstatus_to_exitcode(status)
        found.at_most("seconds of CPU for one file", used.ru_utime + used.ru_stime)
        said = told.read_text(errors="replace").strip() if told.exists() else ""
    if code == REFUSED:
        found.count("refused")
        return None
    return "it was read" if code == READ else f"ended with {code}: {said[:300]}"


def _read(read: Callable[[Path], Any], folder: Path, harmless: Path, told: Path) -> None:
    """In the fork: read a harmless file of the kind, so that everything is imported; watch; read."""
    code = OTHER
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        most = int(ADDRESS_SPACE.read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        with suppress(RegardError):
            read(harmless)
        watch(folder, told)
        read(folder / "file")
        code = READ
    except RegardError as refusal:
        code = REFUSED if len(str(refusal)) < 3000 else OTHER
    except BaseException as error:
        os.write(
            os.open(told, os.O_WRONLY | os.O_CREAT), f"{type(error).__name__}: {error}".encode()
        )
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
        if reason := judge(name, folder, found):
            found.wrong.append(f"{name}: {reason}")
    return found
