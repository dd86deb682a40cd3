"""Cases one after the other: which kind a seed is, what was counted, and a smaller case for one that is off."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from . import cases, far, mechanisms
from .cases import draw_case, simpler
from .far import draw_far, judge_far, simpler_far
from .judging import Verdict, judge
from .mechanisms import draw_mechanism, judge_mechanism

SHRINKING = 400  # cases tried at most


@dataclass(frozen=True)
class Off:
    """A case that went wrong: its seed, the case, and the verdicts that say how."""

    seed: int
    case: Any
    verdicts: tuple[Verdict, ...]
    smaller: Any = None

    def __str__(self) -> str:
        lines = [f"seed {self.seed} is off: {self.case}"]
        lines += [f"  {one.backend}: {one.reason.strip()}" for one in self.verdicts]
        if self.smaller is not None and self.smaller != self.case:
            lines.append(f"  smaller: {self.smaller}")
        return "\n".join(
            [*lines, f"  replay: python -m tests.regard.fuzz --cases 1 --from {self.seed}"]
        )


@dataclass
class Tally:
    """Verdicts by backend and outcome, the largest error by backend in bounds, and the cases that are off."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    worst: dict[str, float] = field(default_factory=dict)
    off: list[Off] = field(default_factory=list)
    cases: int = 0

    def add(self, verdicts: Iterable[Verdict]) -> None:
        self.cases += 1
        for one in verdicts:
            self.counts[one.backend, one.outcome] += 1
            if one.outcome == "right":
                self.worst[one.backend] = max(self.worst.get(one.backend, 0.0), one.share)

    def __str__(self) -> str:
        names = sorted({name for name, _ in self.counts})
        lines = [f"{'':24}{'right':>9}{'refused':>9}{'off':>6}   largest error in bounds"]
        for name in names:
            right, refused, off = (
                self.counts[name, outcome] for outcome in ("right", "refused", "off")
            )
            lines.append(f"{name:24}{right:9}{refused:9}{off:6}   {self.worst.get(name, 0.0):.2f}")
        return "\n".join([*lines, f"{self.cases} cases, {len(self.off)} off"])


def case_of(seed: int) -> Any:
    """The case that a seed stands for: of ten, one call of another mechanism than softmax, and one with far rows."""
    if seed % 10 == 3:
        return draw_far(seed)
    return draw_mechanism(seed) if seed % 10 == 8 else draw_case(seed)


def verdicts_of(case: Any) -> list[Verdict]:
    if isinstance(case, far.Case):
        return judge_far(case)
    return judge_mechanism(case) if isinstance(case, mechanisms.Case) else judge(case)


def judged(seed: int, shrink: bool = True) -> tuple[list[Verdict], Off | None]:
    """The verdicts on a seed, and what to say if one is off."""
    case = case_of(seed)
    verdicts = verdicts_of(case)
    wrong = tuple(one for one in verdicts if one.outcome == "off")
    if not wrong:
        return verdicts, None
    return verdicts, Off(seed, case, wrong, _smallest(case, wrong) if shrink else None)


def _smallest(case: Any, wrong: tuple[Verdict, ...]) -> Any:
    """The simplest case found that is still off on the same backend, with the same kind of reason."""
    backend = wrong[0].backend
    raised = wrong[0].reason.startswith("raised")
    last = wrong[0].reason.strip().splitlines()[-1] if raised else ""

    def still(other: Any) -> bool:
        try:
            again = [
                one for one in verdicts_of(other) if one.backend == backend and one.outcome == "off"
            ]
        except Exception:  # a smaller case that the fuzzer itself cannot make
            return False
        return any(
            one.reason.startswith("raised") == raised and last in one.reason for one in again
        )

    tried = 0
    while True:
        for other in _simpler(case):
            tried += 1
            if tried > SHRINKING:
                return case
            if still(other):
                case = other
                break
        else:
            return case


def _simpler(case: Any) -> Iterator[Any]:
    if isinstance(case, cases.Case):
        yield from simpler(case)
        return
    if isinstance(case, far.Case):
        yield from simpler_far(case)
        return
    plain = mechanisms.Case(case.seed, case.kind)
    for name in ("second", "dtype", "scale", "q_start", "learners", "pattern"):
        if getattr(case, name) != getattr(plain, name) and (name, case.kind) != (
            "pattern",
            "gated",
        ):
            yield replace(case, **{name: getattr(plain, name)})
    for name in ("batch", "head_dim", "v_dim", "features", "q_len", "k_len"):
        if getattr(case, name) > 1:
            yield replace(case, **{name: getattr(case, name) // 2})


def run(
    seeds: Iterable[int], tally: Tally, shrink: bool = True, progress: bool = False
) -> Iterator[int]:
    """Judge the seeds, counting in `tally`; yields each one when it is done."""
    torch.set_num_threads(1)
    spoken = began = time.monotonic()
    for seed in seeds:
        verdicts, off = judged(seed, shrink)
        tally.add(verdicts)
        if off is not None:
            tally.off.append(off)
            if progress:
                print(off, flush=True)
        if progress and time.monotonic() - spoken > 10:
            spoken = time.monotonic()
            speed = tally.cases / (spoken - began)
            print(
                f"{tally.cases} cases, {len(tally.off)} off, {speed:.0f} a second",
                file=sys.stderr,
                flush=True,
            )
        yield seed
