"""Cases one after the other: which kind a seed is, what was counted, and a smaller case for one that is off."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from .cases import draw_case, simpler
from .far import FarCase, draw_far, judge_far, simpler_far
from .judging import CaseVerdict, judge
from .mechanisms import MechanismCase, draw_mechanism, judge_mechanism, simpler_mechanism

SHRINKING = 400  # cases tried at most


@dataclass(frozen=True)
class Off:
    """A case that went wrong: its seed, the case, and the verdicts that say how."""

    seed: int
    case: Any
    verdicts: tuple[CaseVerdict, ...]
    smaller: Any = None

    def __str__(self) -> str:
        lines = [f"seed {self.seed} is off: {self.case}"]
        lines += [f"  {verdict.backend}: {verdict.reason.strip()}" for verdict in self.verdicts]
        if self.smaller is not None and self.smaller != self.case:
            lines.append(f"  smaller: {self.smaller}")
        lines.append(f"  replay: python -m tests.regard.fuzz --cases 1 --from {self.seed}")
        return "\n".join(lines)


@dataclass
class Tally:
    """Verdicts by backend and outcome, the largest error by backend in bounds, and the cases that are off."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    worst: dict[str, float] = field(default_factory=dict)
    off: list[Off] = field(default_factory=list)
    cases: int = 0

    def add(self, verdicts: Iterable[CaseVerdict]) -> None:
        self.cases += 1
        for verdict in verdicts:
            backend = verdict.backend
            self.counts[backend, verdict.outcome] += 1
            if verdict.outcome == "right":
                self.worst[backend] = max(self.worst.get(backend, 0.0), verdict.share)

    def __str__(self) -> str:
        names = sorted({name for name, _ in self.counts})
        lines = [f"{'':24}{'right':>9}{'refused':>9}{'off':>6}   largest error in bounds"]
        for name in names:
            right = self.counts[name, "right"]
            refused = self.counts[name, "refused"]
            off = self.counts[name, "off"]
            lines.append(f"{name:24}{right:9}{refused:9}{off:6}   {self.worst.get(name, 0.0):.2f}")
        lines.append(f"{self.cases} cases, {len(self.off)} off")
        return "\n".join(lines)


def case_of(seed: int) -> Any:
    """The case that a seed stands for: of ten, one call of another mechanism than softmax, and one with far rows."""
    if seed % 10 == 3:
        return draw_far(seed)
    return draw_mechanism(seed) if seed % 10 == 8 else draw_case(seed)


def verdicts_of(case: Any) -> list[CaseVerdict]:
    if isinstance(case, FarCase):
        return judge_far(case)
    return judge_mechanism(case) if isinstance(case, MechanismCase) else judge(case)


def _simpler(case: Any) -> Iterator[Any]:
    if isinstance(case, FarCase):
        return simpler_far(case)
    return simpler_mechanism(case) if isinstance(case, MechanismCase) else simpler(case)


def judged(seed: int, shrink: bool = True) -> tuple[list[CaseVerdict], Off | None]:
    """The verdicts on a seed, and what to say if one is off."""
    case = case_of(seed)
    verdicts = verdicts_of(case)
    wrong = tuple(verdict for verdict in verdicts if verdict.outcome == "off")
    if not wrong:
        return verdicts, None
    smaller = _smallest(case, wrong[0]) if shrink else None
    return verdicts, Off(seed, case, wrong, smaller)


def _smallest(case: Any, wrong: CaseVerdict) -> Any:
    """The simplest case found that is still off on the same backend, with the same kind of reason."""
    tried = 0
    while True:
        for smaller in _simpler(case):
            tried += 1
            if tried > SHRINKING:
                return case
            if _is_off_alike(smaller, wrong):
                case = smaller
                break
        else:
            return case


def _is_off_alike(case: Any, wrong: CaseVerdict) -> bool:
    """Whether a case is off on the same backend with another number, or with the same last line of an error."""
    raised = wrong.reason.startswith("raised")
    last_line = wrong.reason.strip().splitlines()[-1] if raised else ""
    try:
        verdicts = verdicts_of(case)
    except Exception:  # a smaller case that the fuzzer itself cannot make
        return False
    for verdict in verdicts:
        if (verdict.backend, verdict.outcome) == (wrong.backend, "off"):
            reason = verdict.reason
            if reason.startswith("raised") == raised and last_line in reason:
                return True
    return False


def run(
    seeds: Iterable[int], tally: Tally, shrink: bool = True, progress: bool = False
) -> Iterator[int]:
    """Judge the seeds, counting in `tally`; yields each one when it is done."""
    torch.set_num_threads(1)
    began = time.monotonic()
    last_line = began
    for seed in seeds:
        verdicts, off = judged(seed, shrink)
        tally.add(verdicts)
        if off is not None:
            tally.off.append(off)
            if progress:
                print(off, flush=True)
        if progress and time.monotonic() - last_line > 10:
            last_line = time.monotonic()
            speed = tally.cases / (last_line - began)
            line = f"{tally.cases} cases, {len(tally.off)} off, {speed:.0f} a second"
            print(line, file=sys.stderr, flush=True)
        yield seed
