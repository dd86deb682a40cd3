"""The one file of results: what every run found, with its date."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import torch

from .found import Found, Run

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "reliability.json"


def read(path: Path = RESULTS) -> dict[str, Any]:
    """The content of the file; empty where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"runs": {}}


@contextmanager
def changing(path: Path = RESULTS) -> Generator[dict[str, Any]]:
    """The content of the file, to be changed inside the block by one process at a time, and then written whole."""
    from regard.storage.files import replace_file

    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        content = read(path)
        yield content
        replace_file(path, json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True).encode() + b"\n")
    finally:
        os.close(folder)


def add(
    record: dict[str, Any] | None, run: Run, numbers: Iterable[int], found: Found, seconds: float
) -> dict[str, Any]:
    """The record of a run with some more cases."""
    today = date.today().isoformat()
    before = record or {
        "first": today,
        "done": [],
        "counts": {},
        "largest": {},
        "wrong": [],
        "noted": [],
        "cpu_seconds": 0,
    }
    whole = Found(
        Counter(before["counts"]), dict(before["largest"]), list(before["wrong"]), list(before.get("noted", []))
    )
    whole.add(found)
    done = joined([*before["done"], *([number, number + 1] for number in numbers)])
    return {
        "claim": run.claim, "unit": run.unit, "asked": run.cases, "command": run.command,
        "first": before["first"], "last": today,
        "done": done, "cases": sum(stop - start for start, stop in done),
        "counts": dict(whole.counts), "largest": {name: float(f"{x:.3g}") for name, x in whole.largest.items()},
        "wrong": whole.wrong, "noted": whole.noted,
        "cpu_seconds": round(before["cpu_seconds"] + seconds, 1),
        "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
    }  # fmt: skip


def joined(ranges: Iterable[list[int]]) -> list[list[int]]:
    """Ranges of numbers, those that touch joined.

    >>> joined([[4, 5], [0, 2], [2, 3]])
    [[0, 3], [4, 5]]
    """
    whole: list[list[int]] = []
    for start, stop in sorted(map(list, ranges)):
        if whole and start <= whole[-1][1]:
            whole[-1][1] = max(whole[-1][1], stop)
        else:
            whole.append([start, stop])
    return whole


def left(record: dict[str, Any] | None, cases: int, shard: tuple[int, int] = (1, 1)) -> list[int]:
    """The numbers of a shard that no record holds; shards are neighbouring numbers.

    >>> left({"done": [[0, 3]]}, 10, (1, 2)), left(None, 4, (2, 2))
    ([3, 4], [2, 3])
    """
    part, parts = shard
    done = {number for start, stop in (record or {"done": []})["done"] for number in range(start, stop)}
    return [number for number in range(cases * (part - 1) // parts, cases * part // parts) if number not in done]
