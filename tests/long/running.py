"""Runs cases of a run one batch after the other, and writes what each batch found."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

from .found import Found, Run
from .results import RESULTS, add, changing, left, read


def cpu() -> float:
    """Seconds of CPU that this process and its children that ended have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def go_on(run: Run, cases: int, minutes: float, shard: tuple[int, int] = (1, 1), path: Path = RESULTS) -> int:
    """Run what is left of the first `cases` cases of a shard, for so many minutes; 1 if something was wrong.

    A batch that is interrupted counts for nothing, and the next call begins with it.
    """
    numbers = left(read(path)["runs"].get(run.name), cases, shard)
    end, wrong, done = time.monotonic() + 60 * minutes, 0, 0
    print(f"{run.name}: {len(numbers)} of {cases} {run.unit} are left{of_shard(shard)}", flush=True)
    for at in range(0, len(numbers), run.batch):
        if time.monotonic() > end:
            break
        part = numbers[at : at + run.batch]
        began = cpu()
        with tempfile.TemporaryDirectory(prefix=f"long-{run.name}-") as folder:
            found = run.work(part, Path(folder))
        record(run, part, found, cpu() - began, path)
        wrong += len(found.wrong)
        done += len(part)
        for sentence in (*found.wrong, *found.noted):
            print(f"  {sentence}", flush=True)
        print(f"{run.name}: {done} of {len(numbers)} done, {wrong} wrong", file=sys.stderr, flush=True)
    return int(wrong > 0)


def record(run: Run, numbers: list[int], found: Found, seconds: float, path: Path) -> None:
    """Add what a batch found to the file."""
    with changing(path) as content:
        content["runs"][run.name] = add(content["runs"].get(run.name), run, numbers, found, seconds)


def forget(run: Run, path: Path = RESULTS) -> None:
    """Remove what the file holds of a run, so that it begins anew."""
    with changing(path) as content:
        content["runs"].pop(run.name, None)


def of_shard(shard: tuple[int, int]) -> str:
    """
    >>> of_shard((2, 4)), of_shard((1, 1))
    (' in shard 2 of 4', '')
    """
    return f" in shard {shard[0]} of {shard[1]}" if shard != (1, 1) else ""
