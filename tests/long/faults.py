"""Faults of the disk and of memory while a model is trained: what was saved before stays, and training goes on from it.

Each case forks a trainer and gives it one fault: a limit on the size of a file, a disk that is full after so many
bytes, a write, `fsync`, `rename` or `replace` that fails, or an operation of torch that gets no memory. Afterwards the
run must be readable, hold no unfinished file, and be continued to the bits of an undisturbed one.
"""

import builtins
import errno
import io
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regard.errors import CheckpointError, RegardError
from regard_lab.models.storage import load_model

from .running import Found

sys.path.insert(0, str(Path(__file__).parents[1] / "regard_lab" / "training"))
from kill_trainers import kill_trainers
from toy_training import log_without_times, seals, train_toy

KINDS = ("file limit", "full disk", "write", "fsync", "rename", "replace", "memory")
# exit codes: a sentence of regard, torch's own word about memory, anything else
REFUSED, TOLD, OTHER = (
    3,
    4,
    5,
)


class FullDisk(io.FileIO):
    """A file on a disk that has so many bytes left in all; what fits is written, as a file system does."""

    room = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if view and not FullDisk.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = super().write(view[: FullDisk.room])
        FullDisk.room -= written
        return written


def full_after(count: int, run: Path) -> None:
    """From now on the files of the run share a disk with room for `count` bytes."""
    FullDisk.room, real = count, builtins.open

    def opened(
        file: Any, mode: str = "r", *arguments: Any, encoding: str | None = None, **options: Any
    ) -> Any:
        inside = isinstance(file, str | Path) and str(Path(file)).startswith(str(run))
        if not inside or not set(mode) & set("wax"):
            return real(file, mode, *arguments, encoding=encoding, **options)
        raw = io.BufferedWriter(FullDisk(file, mode.replace("b", "")))
        return raw if "b" in mode else io.TextIOWrapper(raw, encoding=encoding)

    builtins.open = opened


def failing(name: str, at: int, number: int) -> None:
    """The `at`-th call of a function of `os` fails, and none after it."""
    real = getattr(os, name)
    calls = iter(range(10**9))

    def call(*arguments: Any, **options: Any) -> Any:
        if next(calls) == at:
            raise OSError(number, os.strerror(number))
        return real(*arguments, **options)

    setattr(os, name, call)


class NoMemory(TorchDispatchMode):
    """The `at`-th operation of torch gets no memory."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left == 0:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"
            )
        return func(*args, **(kwargs or {}))


def disturbed(kind: str, draw: random.Random, run: Path) -> Callable[[], Any]:
    """Set up a fault in this process, and return what to train in."""
    train = lambda: train_toy(run, resume=True)  # noqa: E731
    if kind == "file limit":
        # the write then fails instead of ending the process
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (draw.randrange(1, 2200),) * 2)
    elif kind == "full disk":
        full_after(draw.randrange(1, 26_000), run)
    elif kind == "memory":
        at = draw.randrange(1, 3000)

        def train() -> Any:
            with NoMemory(at):
                return train_toy(run, resume=True)

    elif kind == "write":
        raw = io.FileIO.write
        calls = iter(range(10**9))
        at = draw.randrange(60)

        def write(file: FullDisk, data: Any) -> int:
            if next(calls) == at:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return raw(file, data)

        FullDisk.write = write
        full_after(0, run)
    else:
        failing(
            kind,
            draw.randrange(8 if kind == "rename" else 40),
            draw.choice([errno.EIO, errno.ENOSPC, errno.EDQUOT]),
        )
    return train


def trainer(kind: str, draw: random.Random, run: Path) -> int:
    """The exit code of a forked trainer with a fault: 0 where the fault never came."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    code = OTHER
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        train = disturbed(kind, draw, run)
        train()
        code = 0
    except RegardError:
        code = REFUSED
    except (RuntimeError, MemoryError) as error:
        code = TOLD if "memory" in str(error) else OTHER
    except BaseException:
        code = OTHER
    finally:
        os._exit(code)


def problem(
    number: int, kind: str, folder: Path, whole: tuple[Any, Any], found: Found
) -> str | None:
    """What a fault broke, or None."""
    draw = random.Random(f"fault {number}")
    run = folder / f"run{number}"
    code = trainer(kind, draw, run)
    if code == OTHER or code < 0:
        return f"the trainer ended with code {code}, and not with a sentence"
    found.count(f"{kind}: {'never came' if code == 0 else 'stopped the training'}")
    if (run / "checkpoints.json").exists():
        found.count("checkpoints that were there and load")
        try:
            load_model(run, kind="toy")
        except CheckpointError as error:
            return f"the checkpoint before it does not load: {error}"
    if code == REFUSED and (torn := [path.name for path in run.rglob(".*.writing-*")]):
        return f"unfinished files are left: {torn}"
    train_toy(run, resume=True)
    same = (seals(run), log_without_times(run)) == whole
    shutil.rmtree(run)
    return None if same else "the continued training ends in other bits"


def work(numbers: Sequence[int], folder: Path) -> Found:
    """A case is one fault; kinds in turn, two of three at a byte."""
    torch.set_num_threads(1)
    found = Found()
    began = time.monotonic()
    train_toy(folder / "whole")
    whole = seals(folder / "whole"), log_without_times(folder / "whole")
    for number in numbers:
        kind = KINDS[number // 2 % len(KINDS)] if number % 2 else KINDS[number // 2 % 2]
        reason = problem(number, kind, folder, whole, found)
        found.count("faults")
        found.count("write errors at a byte", kind in ("file limit", "full disk", "write"))
        if reason:
            found.wrong.append(f"fault {number} ({kind}): {reason}")
    found.at_most("seconds a case", (time.monotonic() - began) / max(1, len(numbers)))
    return found


def kills(numbers: Sequence[int], folder: Path) -> Found:
    """A case is a kill of a trainer at a random instant; the first number is the seed of the instants."""
    told = kill_trainers(folder, len(numbers), numbers[0])
    found = Found(Counter(told))
    if told["identical"] != told["runs"] or told["unreadable"]:
        found.wrong.append(f"kills from {numbers[0]}: {told}")
    return found
