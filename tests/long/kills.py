"""Trainings killed with SIGKILL at random instants, each continued to the bits of one that was not killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .found import Found

SCRIPT = Path(__file__).parents[1] / "regard_lab" / "training" / "kill_trainers.py"


def work(numbers: Sequence[int], folder: Path) -> Found:
    """A case is a kill; the first number is the seed of the instants."""
    found = Found()
    command = [sys.executable, str(SCRIPT), str(folder), str(len(numbers)), str(numbers[0])]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        found.wrong.append(f"kills from {numbers[0]}: {done.stderr.strip()[-300:]}")
        return found
    told = json.loads(done.stdout)
    for name, number in told.items():
        found.count(name, number)
    if told["identical"] != told["runs"] or told["unreadable"]:
        found.wrong.append(f"kills from {numbers[0]}: {told}")
    return found
