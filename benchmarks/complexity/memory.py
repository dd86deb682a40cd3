"""Measures the memory that a call needs beside its inputs, its output included, in a process of its own.

It is the peak that the operating system reports during the call, less the value before it.
"""

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.complexity.rows import ROWS, CostRow
from regard.errors import RegardError, UnsupportedError
from regard_lab.bench.measuring import threads

ROOT = Path(__file__).parents[2]
STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")
WARM_LENGTH = 1024  # a call of this length loads libraries before anything is measured


def measure_memory(name: str, lengths: list[int]) -> list[dict[str, Any]]:
    """The peak memory of a row of the table at each length, measured in a separate process.

    Raises:
        RegardError: the process failed; the message has the last line of its error output.
    """
    command = [sys.executable, "-m", "benchmarks.complexity.memory", name, *map(str, lengths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RegardError(f"the memory of {name} was not measured: {words[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def memory_here(row: CostRow, lengths: list[int]) -> list[dict[str, Any]]:
    """The peak memory of a row at each length, measured in this process."""
    row.prepare(WARM_LENGTH).run()
    points = []
    for n in lengths:
        call = row.prepare(n)
        points.append({"length": n, "bytes": peak_of(call.run)})
        del call  # before the tensors of the next length are made
    return points


def peak_of(call: Callable[[], object]) -> int:
    """The peak memory of this process during a call minus its memory before, in bytes.

    Raises:
        UnsupportedError: the operating system does not report it.
    """
    if not RESET.exists():
        raise UnsupportedError(
            f"the peak of memory is read from {STATUS}, which this system does not have"
        )
    # Return freed memory to the system, so that it counts when it is allocated again.
    ctypes.CDLL(None).malloc_trim(0)
    RESET.write_text("5")
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = STATUS.read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def main() -> None:
    name, *lengths = sys.argv[1:]
    with threads(1):
        print(json.dumps(memory_here(ROWS[name], [int(length) for length in lengths])))


if __name__ == "__main__":
    main()
