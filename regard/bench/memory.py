"""Memory that one call needs beside its inputs, its output included: measured in a process of its own.

On the CPU it is what the operating system counted at most during the call, less what it counted before; on CUDA what
PyTorch's allocator counted.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from regard.bench.case import Contender, Contest
from regard.bench.judging import answered
from regard.bench.work import Work, make_tensors
from regard.errors import RegardError, UnsupportedError

PROGRAM = "import sys; from regard.bench.memory import answer_parent; answer_parent(sys.argv[1])"
SMALL = 1024  # long enough for every contender's windows
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure_apart(case: str, label: str, contender: str, *, quick: bool, device: str) -> int:
    """Bytes that a contender of a contest holds at most; another process computes it.

    Raises:
        RegardError: that process failed; with its last words.
    """
    asked = json.dumps({"case": case, "label": label, "contender": contender, "quick": quick, "device": device})
    done = subprocess.run([sys.executable, "-c", PROGRAM, asked], capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"left with {done.returncode}"]
        raise RegardError(f"the memory of {contender} was not measured: {words[-1]}")
    return int(done.stdout.split()[-1])


def measure_here(contest: Contest, contender: Contender) -> int:
    """Bytes that a contender holds at most beside its tensors, in this process.

    Raises:
        UnsupportedError: this operating system does not tell.
    """
    work = contender.works_on(contest.work)
    tensors = make_tensors(work)
    attend = contender.prepare(work, tensors)
    _load(contender, work)
    if contender.compiles:
        answered(work, attend, tensors)
    if work.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        answered(work, attend, tensors)
        return torch.cuda.max_memory_allocated() - before
    return peak_of(lambda: answered(work, attend, tensors))


def peak_of(call: Callable[[], object]) -> int:
    """Bytes that this process holds at most during a call, beyond what it held before.

    Raises:
        UnsupportedError: this operating system does not tell.
    """
    if not RESET.exists():
        raise UnsupportedError(f"the peak of memory is read from {STATUS}, which this system does not have")
    ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back, so that it counts again when it is taken again
    RESET.write_text("5")
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _load(contender: Contender, work: Work) -> None:
    """A small work first: libraries that load at the first call are not this call's."""
    small = replace(work, q_len=min(SMALL, work.q_len), k_len=min(SMALL, work.k_len))
    tensors = make_tensors(small)
    answered(small, contender.prepare(small, tensors), tensors)


def _status(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def answer_parent(asked: str) -> None:
    """What the other process runs."""
    from regard.bench.cases import find_contest

    wanted = json.loads(asked)
    contest = find_contest(wanted["case"], wanted["label"], quick=wanted["quick"], device=wanted["device"])
    contender = next(one for one in contest.contenders if one.name == wanted["contender"])
    torch.set_num_threads(1)
    sys.stdout.write(f"{measure_here(contest, contender)}\n")
