"""A whole run: case after case, each written as soon as it is finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import torch

from regard.bench.cases import CASES, contests_of
from regard.bench.contest import hold
from regard.bench.curves import draw_curves
from regard.bench.machine import environment
from regard.bench.report import write_report
from regard.bench.results import KEYS, Results
from regard.errors import ArgumentError, DataError, UnsupportedError
from regard.storage.ownership import check_ours
from regard.storage.sealed_json import read_sealed_or_older

FILES = ("bench.json", "complexity.json")  # of either kind of results; one folder may hold both
R = TypeVar("R", bound=Results)


def run_bench(
    names: Iterable[str] = (),
    *,
    quick: bool = False,
    out: Path | None = None,
    resume: bool = False,
    device: str = "cpu",
    tell: Callable[[str], None] = lambda line: None,
) -> Results:
    """Measure cases, and write after each what is known: `bench.json`, `bench.md` and a curve for each case.

    Args:
        names: of `CASES`; all of them if none is given.
        quick: smaller sizes and fewer rounds, and nobody who compiles.
        out: where results are written; None for nowhere.
        resume: go on with what `out` holds.
        device: "cpu" or "cuda".
        tell: told what is being done.

    Returns:
        The results, those of earlier runs included if `resume`.

    Raises:
        ArgumentError: an unknown case, or results that were measured elsewhere.
        UnsupportedError: no such device here.
        DataError: there is nothing to resume.
    """
    chosen = _chosen(names)
    if device not in ("cpu", "cuda"):
        raise ArgumentError(f"device {device!r} is not measured on; there are cpu and cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UnsupportedError("device 'cuda' is not here: PyTorch finds no CUDA device")
    named = [] if set(chosen) == set(CASES) else chosen
    results = begin(
        Results, out, quick=quick, resume=resume, device=device, command=["regard bench", *named], tell=tell
    )
    for name in chosen:
        if name in results.cases:
            tell(f"{name}: measured before")
            continue
        case = CASES[name]
        contests = [
            hold(case, contest, quick=quick, tell=tell) for contest in contests_of(case, quick=quick, device=device)
        ]
        results.cases[name] = {"title": case.title, "contests": contests}
        if out is not None:
            results.save(out)
            write_report(results, out)
            draw_curves(name, results.cases[name], out)
    return results


def _chosen(names: Iterable[str]) -> list[str]:
    chosen = list(names) or list(CASES)
    for name in chosen:
        if name not in CASES:
            raise ArgumentError(f"no case is called {name!r}; there are {', '.join(CASES)}")
    return chosen


def begin(
    results: type[R],
    out: Path | None,
    *,
    quick: bool,
    resume: bool,
    device: str,
    command: Iterable[str],
    tell: Callable[[str], None] = lambda line: None,
) -> R:
    """New results, or those that are to be continued.

    Args:
        results: their class.
        out: their folder.
        quick: is it a quick run?
        resume: continue those in the folder.
        device: where it is measured.
        command: the words that ask for the same again.
        tell: told where what is resumed cannot be checked.

    Raises:
        ArgumentError: results that were measured elsewhere, or no folder.
        DataError: there is nothing to resume, or no folder there.
        CheckpointError: the folder holds other files than results, or damaged results.
    """
    here = environment(device)
    if resume:
        if out is None:
            raise ArgumentError("--resume needs the folder of the results, --out FOLDER")
        found = results.load(out)
        found.check_continues(here, quick)
        if not found.is_sealed:
            tell(f"{out / found.file} was written before results were sealed, so damage cannot be noticed")
        return found
    if out is not None and out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file; results need a folder")
    if out is not None:
        readers = {file: lambda path: read_sealed_or_older(path, KEYS, KEYS) for file in FILES}
        check_ours(out, readers, "results of a bench")
    return results(here, quick, " ".join([*command, *(["--quick"] if quick else [])]))
