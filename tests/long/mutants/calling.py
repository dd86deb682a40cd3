"""Which tests call which functions of the library, and how long each takes; found by running them once."""

import json
import sys
import threading
import time
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from .copies import ROOT, pytest_in_fork

# Folders whose tests run in one process; what runs in processes of its own is not seen.
FOLDERS = {
    "regard": ". patterns mechanisms caches storage contracts fuzz backends native layers",
    "regard_lab": "models decoding training conversion cli",
}
# Examples in docstrings; a folder is recorded as one file is.
EXAMPLES = (
    "regard/patterns", "regard/core", "regard/backends", "regard/layers", "regard/mechanisms", "regard/bias.py",
    "regard/positions.py", "regard_lab/training", "regard/storage", "regard_lab/decoding",
    "regard_lab/conversion", "regard_lab/cli",
)  # fmt: skip
LONGEST = 8.0  # seconds of CPU: a longer test is not used for mutants


class Recorder:
    """A pytest plugin that notes the functions of regard that each test calls, and its CPU time."""

    def __init__(self, folder: Path) -> None:
        self.folder = f"{folder}/"
        self.tests: dict[str, tuple[float, list[str]]] = {}
        self.seen: set[CodeType] = set()
        self.before: set[str] = set()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        self.seen.add(frame.f_code)

    def _names(self) -> set[str]:
        own = [
            one
            for one in self.seen
            if one.co_filename.startswith((f"{self.folder}regard/", f"{self.folder}regard_lab/"))
        ]
        return {f"{one.co_filename[len(self.folder) :]}:{one.co_qualname}" for one in own}

    def pytest_collection(self) -> None:
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def pytest_collection_finish(self) -> None:
        sys.settrace(None)
        self.before, self.seen = self._names(), set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.seen = set()
        began = time.process_time()
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            self.tests[item.nodeid] = (round(time.process_time() - began, 3), sorted(self._names()))
            self.noted()

    def noted(self) -> None:
        """Called after each test, since a file that takes too long is killed."""


def record(copy: Path, path: str, seconds: float, log: Path) -> dict[str, Any]:
    """What the tests of one file call: `{"tests": {id: [seconds, functions]}, "collecting": functions}`."""
    result = log.with_suffix(".json")
    result.unlink(missing_ok=True)

    class Writing(Recorder):
        def noted(self) -> None:
            result.write_text(json.dumps({"tests": self.tests, "collecting": sorted(self.before)}))

    pytest_in_fork(copy, [path], Writing(copy), seconds, log)
    return json.loads(result.read_text()) if result.exists() else {"tests": {}, "collecting": []}


def test_files() -> list[str]:
    """The files of FOLDERS, one of each folder in turn, so that an early part of the list already holds every room."""
    folders = [ROOT / "tests" / side / name for side, names in FOLDERS.items() for name in names.split()]
    lists = [sorted(path.relative_to(ROOT).as_posix() for path in folder.glob("test_*.py")) for folder in folders]
    return [path for files in zip_longest(*lists) for path in files if path] + [*EXAMPLES]


class Callers:
    """The record of all files: which tests call a function."""

    def __init__(self, files: dict[str, dict[str, Any]]) -> None:
        self.seconds: dict[str, float] = {}
        self.by_function: dict[str, set[str]] = {}
        for record in files.values():
            for test, (seconds, functions) in record["tests"].items():
                if seconds <= LONGEST:
                    self.seconds[test] = seconds
                    for function in {*functions, *record["collecting"]}:
                        self.by_function.setdefault(function, set()).add(test)

    def of(self, path: str, function: str) -> list[str]:
        """The tests that call a function ("": anything of the file), the quickest first, one file after the other."""
        if function:
            tests = self.by_function.get(f"{path}:{function}", set())
        else:
            tests = set().union(*(tests for name, tests in self.by_function.items() if name.startswith(f"{path}:")))
        room = path.split("/")[1].removesuffix(".py")
        return sorted(tests, key=lambda test: (f"/{room}" not in test, self.seconds[test], test))
