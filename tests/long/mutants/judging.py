"""A mutant by its number: where it is planted, which tests run against it, and whether one of them fails.

python -m tests.long mutants               300 mutants, written to the result file
python -m tests.long.mutants 17 42         those mutants, with what pytest printed
"""

import json
import random
import tempfile
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ..running import Found
from .calling import Callers, record, test_files
from .copies import ROOT, copy_of_all, import_heavy, pytest_in_fork
from .sites import Site, compiles, sites

CALLS = ROOT / "runs" / "long" / "calls.json"
ROOMS: dict[str, tuple[str, ...]] = {
    "patterns": ("regard/patterns",),
    "backends": ("regard/backends",),
    "calls": ("regard/core",),
    "caches": ("regard/layers/caches",),
    "layers": ("regard/layers", "regard/bias.py", "regard/positions.py"),
    "mechanisms": ("regard/mechanisms",),
    "training": ("regard_lab/training",),
    "storage": ("regard/storage", "regard_lab/models/storage.py"),
    "decoding": ("regard_lab/decoding",),
    "conversion": ("regard_lab/conversion",),
    "commands": ("regard_lab/cli",),
}
LEFT_OUT = ("drawing.py", "report.py", "/build.py", "/flex/", "reprs.py", "hints.py", "explanation.py", "record.py")
BUDGET = 12.0  # seconds of CPU that the tests of one mutant took when they were recorded


@dataclass(frozen=True)
class Mutant:
    number: int
    room: str
    path: str
    site: Site

    def __str__(self) -> str:
        return f"mutant {self.number}, {self.path}:{self.site.line}: {self.site}"


@cache
def _sites(path: Path) -> list[Site]:
    return sites(path.read_bytes())


def mutant(number: int) -> Mutant:
    """The mutant that a number stands for: rooms in turn; in a room every place is equally likely."""
    room = list(ROOMS)[number % len(ROOMS)]
    paths = [ROOT / name for name in ROOMS[room]]
    files = [file for path in paths for file in ([path] if path.suffix else sorted(path.rglob("*.py")))]
    if room == "layers":
        files = [file for file in files if "/caches/" not in file.as_posix()]
    files = [file for file in files if not any(part in file.as_posix() for part in LEFT_OUT)]
    every = [(file, site) for file in files for site in _sites(file)]
    draw = random.Random(f"mutant {number}")
    while True:
        file, site = draw.choice(every)
        if compiles(site.applied(file.read_bytes())):
            return Mutant(number, room, file.relative_to(ROOT).as_posix(), site)


class Ordered:
    """A pytest plugin that runs the given tests in the given order, and notes the first that fails."""

    def __init__(self, tests: list[str], note: Path) -> None:
        self.places, self.note = {test: at for at, test in enumerate(tests)}, note

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((one for one in items if one.nodeid in self.places), key=lambda one: self.places[one.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.note.exists():
            self.note.write_text(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.note.exists():
            self.note.write_text(f"{report.nodeid or 'conftest'} (collected)")


def chosen(mutant: Mutant, callers: Callers, budget: float = BUDGET) -> list[str]:
    """Tests that call the mutated function, those of its room first, the quickest first, within the budget."""
    tests, spent = [], 0.0
    for test in callers.of(mutant.path, mutant.site.function) or callers.of(mutant.path, ""):
        spent += callers.seconds[test] + 0.003
        if spent > budget:
            break
        tests.append(test)
    return tests


def outcome(mutant: Mutant, copy: Path, callers: Callers, budget: float = BUDGET) -> tuple[str, str]:
    """("killed", the test), ("survived", how many tests), ("timed out", ...) or ("untested", "")."""
    tests = chosen(mutant, callers, budget)
    if not tests:
        return "untested", "no recorded test calls the function"
    note = copy / "failed.txt"
    note.unlink(missing_ok=True)
    files = sorted({test.partition("::")[0] for test in tests})
    code = met(mutant, copy, ["-x", *files], Ordered(tests, note), 3 * budget + 20)
    if code == 0:
        return "survived", f"{len(tests)} tests passed"
    if code < 0:
        return "timed out", f"signal {-code}"
    if code == 5:
        return "untested", "none of the recorded tests was collected"
    return "killed", note.read_text() if note.exists() else f"pytest ended with {code}"


def met(mutant: Mutant, copy: Path, arguments: list[str], plugin: object, seconds: float) -> int:
    """pytest's exit code where the copy holds the mutant, which it does not hold afterwards."""
    file = copy / mutant.path
    whole = file.read_bytes()
    try:
        file.write_bytes(mutant.site.applied((ROOT / mutant.path).read_bytes()))
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
            compiled.unlink()
        return pytest_in_fork(copy, arguments, plugin, seconds, copy / "pytest.txt")
    finally:
        file.write_bytes(whole)


@contextmanager
def workplace():
    """A copy of everything, and which tests call what; recorded first where that was not done."""
    import_heavy()
    with tempfile.TemporaryDirectory(prefix="mutants") as name:
        copy = copy_of_all(Path(name).resolve())
        files = json.loads(CALLS.read_text()) if CALLS.exists() else {}
        CALLS.parent.mkdir(parents=True, exist_ok=True)
        for path in test_files():
            if path not in files:
                files[path] = record(copy, path, 60, copy / "pytest.txt")
                CALLS.write_text(json.dumps(files))
        yield copy, Callers(files)


def work(numbers: Sequence[int], folder: Path) -> Found:
    """Judge mutants; a survivor is written down."""
    found = Found()
    with workplace() as (copy, callers):
        for number in numbers:
            one = mutant(number)
            verdict, why = outcome(one, copy, callers)
            found.count(verdict)
            found.count(f"{one.room}: {verdict}")
            if verdict in ("survived", "untested"):
                found.noted.append(f"{one} ({verdict}: {why})")
    return found
