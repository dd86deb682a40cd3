"""A copy of the library and its tests, and pytest in a fork of this process that imports the library from there.

torch and other heavy packages are imported once, here; regard is imported by each fork.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
HEAVY = (
    "torch",
    "numpy",
    "hypothesis",
    "pytest",
    "accelerate",
    "safetensors",
    "tokenizers",
    "typer",
    "rich",
    "sacrebleu",
)
IDLE = 40.0  # seconds without any CPU time, as of a command that a mutant made wait for ever
LONGEST_STEP = 0.1  # seconds of idleness counted between two looks at a child; the rest is this process's own waiting
COPIED = (
    "regard",
    "regard_lab",
    "tests",
    "docs",
    "benchmarks",
    "pyproject.toml",
    "DESIGN.md",
    "CONTRIBUTING.md",
    "README.md",
)


def copy_of_all(folder: Path) -> Path:
    """The library, its tests and what those read, without compiled Python."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        else:
            shutil.copy2(source, folder / name)
    return folder


def import_heavy() -> None:
    """What every fork needs and no mutant changes."""
    import importlib
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in HEAVY:
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)


def in_fork(copy: Path, work: Callable[[], int], seconds: float, log: Path) -> int:
    """The exit code of `work` in a fork whose regard is that of the copy; negative if a signal ended it.

    Args:
        copy: the folder that `copy_of_all` filled.
        work: called in the fork; it returns an exit code.
        seconds: of CPU time, after which the fork is killed; of elapsed time it has ten times as much.
        log: receives what the fork prints.
    """
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setsid()
            _settle(copy, seconds, log)
            code = work()
        except BaseException as error:
            print(f"the fork failed: {error!r}", flush=True)
        finally:
            os._exit(code)
    return _wait(child, seconds * 10)


def _settle(copy: Path, seconds: float, log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for one in (1, 2):
        os.dup2(descriptor, one)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout, sys.stderr = (os.fdopen(one, "w", closefd=False) for one in (1, 2))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
    resource.setrlimit(resource.RLIMIT_AS, (24 * 2**30, 24 * 2**30))
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    sys.dont_write_bytecode = True
    sys.path[:] = [str(copy)] + [one for one in sys.path if Path(one or ".").resolve() != ROOT]
    for name in [name for name in sys.modules if name.split(".")[0] in ("regard", "regard_lab", "tests", "docs")]:
        del sys.modules[name]


def _wait(child: int, seconds: float) -> int:
    """Wait for a child; kill its session when the time is over, after IDLE seconds without CPU time, or on Ctrl-C."""
    seen = time.monotonic()
    end, idle, used = seen + seconds, 0.0, 0
    try:
        while seen < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
            before, seen = seen, time.monotonic()
            idle += min(seen - before, LONGEST_STEP)
            if idle > IDLE / 2 and (now := _ticks(child)) > used:
                idle, used = 0.0, now
            elif idle > IDLE:
                break
        os.kill(child, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # what the tests started and left


def _ticks(session: int) -> int:
    """The CPU time of all processes of a session, in the system's unit."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                total += int(fields[11]) + int(fields[12])
    return total


def pytest_in_fork(copy: Path, arguments: list[str], plugin: Any, seconds: float, log: Path) -> int:
    """pytest's exit code in a fork, with a plugin object."""

    def work() -> int:
        import pytest

        base = [
            "-q",
            "-W",
            "ignore:Module already imported",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(copy),
            "-c",
            str(copy / "pyproject.toml"),
        ]
        return int(pytest.main([*base, *arguments], plugins=[plugin]))

    return in_fork(copy, work, seconds, log)
