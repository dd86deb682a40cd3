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
from collections.abc import Sequence
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
# Exit codes of a trainer.
TRAINED = 0  # the fault never came
REFUSED = 3  # by a sentence of regard
NO_MEMORY = 4  # by torch's own words
OTHER = 5


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
    FullDisk.room = count
    usual_open = builtins.open

    def open_on_full_disk(
        file: Any, mode: str = "r", *arguments: Any, encoding: str | None = None, **options: Any
    ) -> Any:
        is_of_run = isinstance(file, str | Path) and str(Path(file)).startswith(str(run))
        if not is_of_run or not set(mode) & set("wax"):
            return usual_open(file, mode, *arguments, encoding=encoding, **options)
        raw = io.BufferedWriter(FullDisk(file, mode.replace("b", "")))
        return raw if "b" in mode else io.TextIOWrapper(raw, encoding=encoding)

    builtins.open = open_on_full_disk


def fail_once(owner: Any, name: str, calls_before: int, error_number: int) -> None:
    """After so many calls the next one of a function fails, and none after it."""
    function = getattr(owner, name)
    calls = iter(range(10**9))

    def call(*arguments: Any, **options: Any) -> Any:
        if next(calls) == calls_before:
            raise OSError(error_number, os.strerror(error_number))
        return function(*arguments, **options)

    setattr(owner, name, call)


class NoMemory(TorchDispatchMode):
    """The operation with this number gets no memory."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left == 0:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"
            )
        return func(*args, **(kwargs or {}))


def train_with(kind: str, draw: random.Random, run: Path) -> None:
    """Set up a fault in this process, and train."""
    if kind == "memory":
        with NoMemory(draw.randrange(1, 3000)):
            train_toy(run, resume=True)
        return
    if kind == "file limit":
        # The write then fails instead of ending the process.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (draw.randrange(1, 2200),) * 2)
    elif kind == "full disk":
        full_after(draw.randrange(1, 26_000), run)
    elif kind == "write":
        FullDisk.write = io.FileIO.write  # the disk has room for everything
        fail_once(FullDisk, "write", draw.randrange(60), errno.EIO)
        full_after(0, run)
    else:
        calls_before = draw.randrange(8 if kind == "rename" else 40)
        fail_once(os, kind, calls_before, draw.choice([errno.EIO, errno.ENOSPC, errno.EDQUOT]))
    train_toy(run, resume=True)


def exit_code_of_trainer(kind: str, draw: random.Random, run: Path) -> int:
    """How a forked trainer with a fault ends."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    code = OTHER
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        train_with(kind, draw, run)
        code = TRAINED
    except RegardError:
        code = REFUSED
    except (RuntimeError, MemoryError) as error:
        code = NO_MEMORY if "memory" in str(error) else OTHER
    except BaseException:
        code = OTHER
    finally:
        os._exit(code)


def what_broke(
    number: int, kind: str, folder: Path, whole: tuple[Any, Any], found: Found
) -> str | None:
    """What a fault broke, or None."""
    run = folder / f"run{number}"
    code = exit_code_of_trainer(kind, random.Random(f"fault {number}"), run)
    if code == OTHER or code < 0:
        return f"the trainer ended with code {code}, and not with a sentence"
    found.count(f"{kind}: {'never came' if code == TRAINED else 'stopped the training'}")
    if (run / "checkpoints.json").exists():
        found.count("checkpoints that were there and load")
        try:
            load_model(run, kind="toy")
        except CheckpointError as error:
            return f"the checkpoint before it does not load: {error}"
    unfinished = [path.name for path in run.rglob(".*.writing-*")]
    if code == REFUSED and unfinished:
        return f"unfinished files are left: {unfinished}"
    train_toy(run, resume=True)
    is_same = (seals(run), log_without_times(run)) == whole
    shutil.rmtree(run)
    return None if is_same else "the continued training ends in other bits"


def kind_of(number: int) -> str:
    """Kinds in turn; two of three faults come at a byte, by the first two kinds."""
    return KINDS[number // 2 % (len(KINDS) if number % 2 else 2)]


def work(numbers: Sequence[int], folder: Path) -> Found:
    """A case is one fault."""
    torch.set_num_threads(1)
    found = Found()
    began = time.monotonic()
    train_toy(folder / "whole")
    whole = seals(folder / "whole"), log_without_times(folder / "whole")
    for number in numbers:
        kind = kind_of(number)
        reason = what_broke(number, kind, folder, whole, found)
        found.count("faults")
        found.count("write errors at a byte", kind in ("file limit", "full disk", "write"))
        if reason:
            found.wrong.append(f"fault {number} ({kind}): {reason}")
    found.at_most("seconds a case", (time.monotonic() - began) / max(1, len(numbers)))
    return found


def kills(numbers: Sequence[int], folder: Path) -> Found:
    """A case is a kill of a trainer at a random instant; the first number is the seed of the instants."""
    counts = kill_trainers(folder, len(numbers), numbers[0])
    found = Found(Counter(counts))
    if counts["identical"] != counts["runs"] or counts["unreadable"]:
        found.wrong.append(f"kills from {numbers[0]}: {counts}")
    return found
