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
        for one in verdicts:
            if one.backend != "auto":
                found.count(one.outcome)
                found.count(f"{one.backend}: {one.outcome}")
                if one.outcome == "right":
                    found.count("gradient comparisons", learns)
                    found.at_most(f"{one.backend}, error in bounds", one.share)
        if off is not None:
            found.wrong.append(str(off))
    return found
