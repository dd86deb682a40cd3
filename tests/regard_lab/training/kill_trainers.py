"""Kill a trainer again and again with SIGKILL, and tell what became of its runs.

Each trainer is a fork of this process, so that kills fall into training and not into imports.
"""

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch
from toy_training import log_without_times, seals, train_toy

from regard.errors import CheckpointError
from regard_lab.models.storage import load_model


def trainer(run: Path) -> int:
    process = os.fork()
    if process == 0:
        try:
            train_toy(run, resume=True)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    return process


def is_readable(run: Path) -> bool:
    """Before the first checkpoint there is nothing to read; after it, there is at every instant."""
    if not (run / "checkpoints.json").exists():
        return True
    try:
        load_model(run, kind="toy")
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return False
    return True


def kill_trainers(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """How many kills and runs there were, and how many runs ended in other bits or could not be read."""
    torch.set_num_threads(1)
    draw = random.Random(seed)
    counts = {"kills": 0, "runs": 0, "identical": 0, "unreadable": 0, "kills_while_saving": 0}
    train_toy(folder / "warm")  # every import that training makes happens here, once
    start = time.monotonic()
    train_toy(folder / "whole")
    seconds = time.monotonic() - start
    while counts["kills"] < kills:
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        while True:
            process = trainer(run)
            time.sleep(draw.uniform(0.0, seconds))
            os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            if os.WIFEXITED(status):  # it was done before the kill
                if os.WEXITSTATUS(status) != 0:
                    raise RuntimeError("a trainer that was not killed failed")
                break
            counts["kills"] += 1
            counts["kills_while_saving"] += any(run.glob(".*.writing-*"))
            counts["unreadable"] += not is_readable(run)
        counts["runs"] += 1
        same_log = log_without_times(run) == log_without_times(folder / "whole")
        counts["identical"] += seals(run) == seals(folder / "whole") and same_log
    return counts
