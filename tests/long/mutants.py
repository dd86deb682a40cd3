"""Small changes of the code, each of which some test must notice.

python -m tests.long mutants               300 mutants, written to the file of results
python -m tests.long.mutants 17 42         those mutants, with what pytest printed for one that was not killed

Rooms of the code take turns, and a place in a room is drawn. The quick tests of the room, and the examples in its
docstrings, then run in a copy of everything that holds the change, until one fails.
"""

import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .mutant_sites import Site, compiles, sites
from .running import Found

ROOT = Path(__file__).parents[2]
COPIED = (
    "regard",
    "regard_lab",
    "tests",
    "docs",
    "benchmarks",
    "pyproject.toml",
    "DESIGN.md",
    "README.md",
)


class Room(NamedTuple):
    """Files and folders of sources, and of tests besides the examples in them; quick ones first."""

    sources: str
    tests: str


ROOMS = {
    "patterns": Room("regard/patterns", "regard/patterns regard/contracts/test_laws.py"),
    "backends": Room("regard/backends", "regard/backends regard/native regard/contracts"),
    "calls": Room("regard/core", "regard/contracts regard/test_call.py regard/backends"),
    "caches": Room("regard/layers/caches", "regard/caches regard/layers"),
    "layers": Room(
        "regard/layers regard/bias.py regard/positions.py",
        "regard/layers regard/test_bias.py regard/test_positions.py regard_lab/models",
    ),
    "mechanisms": Room("regard/mechanisms", "regard/mechanisms regard/contracts"),
    "training": Room("regard_lab/training", "regard_lab/training"),
    "storage": Room(
        "regard/storage regard_lab/models/storage.py", "regard/storage regard_lab/models"
    ),
    "decoding": Room("regard_lab/decoding", "regard_lab/decoding"),
    "conversion": Room("regard_lab/conversion", "regard_lab/conversion"),
    "commands": Room("regard_lab/cli", "regard_lab/cli"),
}
LEFT_OUT = ("drawing.py", "report.py", "/build.py", "/flex/", "reprs.py", "record.py")
SECONDS = 600  # of CPU time for the tests of one mutant


class Mutant(NamedTuple):
    """One change of one file."""

    number: int
    room: str
    path: str
    site: Site

    def __str__(self) -> str:
        return f"mutant {self.number}, {self.path}:{self.site.line}: {self.site}"


def _sources(room: str) -> Iterator[Path]:
    """The files of a room, but for those that are left out."""
    without = [*LEFT_OUT]
    if room == "layers":
        without.append("/caches/")  # a room of their own
    for name in ROOMS[room].sources.split():
        path = ROOT / name
        for file in [path] if path.suffix else sorted(path.rglob("*.py")):
            if not any(part in file.as_posix() for part in without):
                yield file


@cache
def _places(room: str) -> list[tuple[Path, Site]]:
    """Every change of every file of a room."""
    places = []
    for file in _sources(room):
        places += [(file, site) for site in sites(file.read_bytes())]
    return places


def mutant(number: int) -> Mutant:
    """The mutant that a number stands for: rooms in turn; in a room every place is equally likely."""
    room = list(ROOMS)[number % len(ROOMS)]
    draw = random.Random(f"mutant {number}")
    while True:
        file, site = draw.choice(_places(room))
        if compiles(site.applied(file.read_bytes())):
            return Mutant(number, room, file.relative_to(ROOT).as_posix(), site)


def copy_of_all(folder: Path) -> Path:
    """The library, its tests and what those read.

    Files keep their times, by which compiled Python is known to be theirs, and a changed file has another one. Each
    process of tests compiled hundreds of modules again without.
    """
    for name in COPIED:
        if (ROOT / name).is_dir():
            leave = shutil.ignore_patterns("node_modules")
            shutil.copytree(ROOT / name, folder / name, ignore=leave)
        else:
            shutil.copy2(ROOT / name, folder / name)
    return folder


def limit_cpu_time() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def run_tests(
    path: str, changed: bytes, copy: Path, tests: Sequence[str], *options: str
) -> subprocess.CompletedProcess[str] | None:
    """Run tests with other content of a file of the copy, which is whole again afterwards; None: they took too long."""
    file = copy / path
    whole = file.read_bytes()
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["OMP_NUM_THREADS"] = "1"
    try:
        file.write_bytes(changed)
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            preexec_fn=limit_cpu_time,
            timeout=5 * SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None
    finally:
        file.write_bytes(whole)


def judge_mutant(mutated: Mutant, copy: Path, tests: Sequence[str]) -> tuple[str, str]:
    """ "killed", "survived" or "timed out", and what pytest printed."""
    changed = mutated.site.applied((ROOT / mutated.path).read_bytes())
    done = run_tests(mutated.path, changed, copy, tests, "-x", "-m", "not slow and not gpu")
    if done is None:
        return "timed out", ""
    if done.returncode < 0:
        return "timed out", done.stdout
    return "killed" if done.returncode else "survived", done.stdout


def paths_of_tests(mutated: Mutant) -> list[str]:
    """The examples in the file, and the tests of the room."""
    return [mutated.path, *(f"tests/{path}" for path in ROOMS[mutated.room].tests.split())]


def work(numbers: Sequence[int], folder: Path) -> Found:
    """Judge mutants; a survivor is written down."""
    found = Found()
    copy = copy_of_all(folder)
    for number in numbers:
        mutated = mutant(number)
        verdict, _ = judge_mutant(mutated, copy, paths_of_tests(mutated))
        found.count(verdict)
        found.count(f"{mutated.room}: {verdict}")
        if verdict == "survived":
            found.noted.append(f"{mutated} ({verdict})")
    return found


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory(prefix="mutants") as place:
        whole_copy = copy_of_all(Path(place).resolve())
        for word in sys.argv[1:]:
            named = mutant(int(word))
            verdict, printed = judge_mutant(named, whole_copy, paths_of_tests(named))
            print(f"{named}\n    {verdict}", "" if verdict == "killed" else printed, flush=True)
