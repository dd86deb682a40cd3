"""Random calls against formulas in float64, counted: `tests.regard.fuzz`, a seed for each case."""

from collections.abc import Sequence
from pathlib import Path

import torch

from tests.regard.fuzz.running import case_of, judged

from .running import Found


def work(numbers: Sequence[int], folder: Path) -> Found:
    """A comparison is one case on one backend, with all that it returns; `auto` repeats one and is not counted."""
    torch.set_num_threads(1)
    found = Found()
    for seed in numbers:
        verdicts, off = judged(seed)
        learns = bool(getattr(case_of(seed), "learners", ()))
        for verdict in verdicts:
            if verdict.backend == "auto":
                continue
            found.count(verdict.outcome)
            found.count(f"{verdict.backend}: {verdict.outcome}")
            if verdict.outcome == "right":
                found.count("gradient comparisons", learns)
                found.at_most(f"{verdict.backend}, error in bounds", verdict.share)
        if off is not None:
            found.wrong.append(str(off))
    return found
