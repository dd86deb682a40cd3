"""A copy of the library and its tests, and pytest in a fork of this process that imports the library from there.

torch and other heavy packages are imported once, here; regard is imported by each fork.
"""

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
HEAVY = ("torch", "numpy", "hypothesis", "pytest", "accelerate", "safetensors", "tokenizers", "typer", "sacrebleu")
FOLDERS = ("regard", "regard_lab", "tests", "docs", "benchmarks")
FILES = ("pyproject.toml", "DESIGN.md", "README.md", "CONTRIBUTING.md")


def copy_of_all(folder: Path) -> Path:
    """The library, its tests and what those read, without compiled Python."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    for name in FILES:
        shutil.copy2(ROOT / name, folder / name)
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
        seconds: of CPU time, after which the fork is killed; of elapsed time it has five times as much.
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
    return _wait(child, seconds * 5)


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
    """Wait for a child; kill its session when the time is over, or on Ctrl-C."""
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.kill(child, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # what the tests started and left


def pytest_in_fork(copy: Path, arguments: list[str], plugin: Any, seconds: float, log: Path) -> int:
    """pytest's exit code in a fork, with a plugin object."""

    def work() -> int:
        import pytest

        base = ["-q", "-p", "no:cacheprovider", "-W", "ignore:Module already imported"]
        place = ["--rootdir", str(copy), "-c", str(copy / "pyproject.toml")]
        return int(pytest.main([*base, *place, *arguments], plugins=[plugin]))

    return in_fork(copy, work, seconds, log)
