"""What a case is made of: contests between contenders over one work, and the bounds that they are expected to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.arguments import a_string, real
from regard.core.plan import Plan
from regard.errors import ArgumentError
from regard.reprs import brief
from regard_lab.bench.work import Tensors, Work

KINDS = {
    "faster": "{ours} is {found:.2f}x as fast as {other} (promised: at least {bound:g}x)",
    "slower": "{ours} takes {found:.2f}x the time of {other} (promised: at most {bound:g}x)",
    "slower by": "{ours} takes {found:.1f} µs more than {other} (promised: at most {bound:g})",
    "extra memory": "{ours} needs {found:.2f}x the memory of q, k, v and output beside q, k and v "
    "(promised: at most {bound:g}x)",
    "holds": "{ours} needs {found:.1f} MiB beside its inputs (promised: at most {bound:g})",
    "more memory": "{ours} needs {found:.2f}x the memory of {other} (promised: at most {bound:g}x)",
}


@dataclass(frozen=True)
class Promise:
    """A promised bound on a ratio or difference between two contenders; times are medians of CPU time on 1 thread.

    Args:
        kind: "faster" (other's time / ours, at least `bound`), "slower" (our time / other's, at most), "slower by"
            (our time - other's in µs, at most), "extra memory" (our peak beside q, k and v / bytes of q, k, v and
            output, at most), "holds" (our peak in MiB, at most) or "more memory" (our peak / other's, at most).
        ours: the contender for which the promise is made.
        other: the contender it is compared with; "" if the kind needs none.
        bound: the limit.

    >>> promise = Promise("faster", "regard", "SDPA", 2.0)
    >>> ratio = promise.found({"regard": {"cpu": {"median": 1.0}}, "SDPA": {"cpu": {"median": 3.0}}}, 0)
    >>> ratio, promise.kept(ratio), promise.say(ratio)
    (3.0, True, 'regard is 3.00x as fast as SDPA (promised: at least 2x): kept')
    """

    kind: str
    ours: str
    other: str
    bound: float

    def __post_init__(self) -> None:
        for name in ("kind", "ours", "other"):
            a_string(name, getattr(self, name))
        object.__setattr__(self, "bound", real("bound", self.bound))
        if self.kind not in KINDS:
            raise ArgumentError(f"a promise of kind {self.kind!r} does not exist; there are {', '.join(KINDS)}")

    def found(self, answers: Mapping[str, Mapping[str, Any]], tensor_bytes: int) -> float | None:
        """The measured number, from the records of the contenders; None if one of them was not measured."""
        memory = "memory" in self.kind or self.kind == "holds"
        ours, other = (_number(answers.get(name, {}), memory) for name in (self.ours, self.other))
        if self.kind == "extra memory":
            return None if ours is None else ours / tensor_bytes
        if self.kind == "holds":
            return None if ours is None else ours / 2**20
        if ours is None or other is None or 0 in (ours, other):
            return None
        if self.kind == "faster":
            return other / ours
        return (ours - other) * 1e6 if self.kind == "slower by" else ours / other

    def kept(self, found: float) -> bool:
        """Whether the measured number is within the bound."""
        return found >= self.bound if self.kind == "faster" else found <= self.bound

    def say(self, found: float | None) -> str:
        """One sentence with the measured number, the bound, and whether the promise was kept."""
        if found is None:
            against = f" against {self.other}" if self.other else ""
            return f"{self.ours}{against}: {self.kind} {self.bound:g} was not measured"
        verdict = "kept" if self.kept(found) else "missed"
        text = KINDS[self.kind].format(ours=self.ours, other=self.other, found=found, bound=self.bound)
        return f"{text}: {verdict}"


def _number(answer: Mapping[str, Any], memory: bool) -> float | None:
    if memory:
        return answer.get("memory_bytes")
    return answer["cpu"]["median"] if "cpu" in answer else None


Attend = Callable[[], torch.Tensor | dict[str, torch.Tensor]]
Prepare = Callable[[Work, Tensors], Attend]


def unchanged(work: Work) -> Work:
    """The default of `Contender.works_on`: the work of the contest."""
    return work


@brief
@dataclass(frozen=True)
class Contender:
    """One way to compute a work.

    Args:
        name: its name in reports.
        prepare: makes the call to be timed from a work and its tensors; the call returns the output, or the output and
            statistics by name. Set-up that a user does once (masks, modules, plans) is part of `prepare`.
        package: the package it needs besides torch; "" for none.
        compiles: True if its first call takes tens of seconds; a quick run omits it.
        device: the only device it runs on; "" for any.
        own_dropout: True if its dropout uses other random numbers; it is then checked without dropout.
        own_pattern: for a contender that computes other pairs than the work's pattern: a function that returns them
            for some rows, (batch or 1, heads or 1, rows, k_len), after `prepare`.
        works_on: changes the work of the contest.
        judged_at: a shorter length at which its values are checked, if they depend on every row.
        plan: for regard, the plan that computes the work.
    """

    name: str
    prepare: Prepare
    package: str = ""
    compiles: bool = False
    device: str = ""
    own_dropout: bool = False
    own_pattern: Callable[[Work, list[int]], torch.Tensor] | None = None
    works_on: Callable[[Work], Work] = unchanged
    judged_at: int | None = None
    plan: Callable[[Work, Tensors], Plan] | None = None


@brief
@dataclass(frozen=True)
class Contest:
    """Several contenders that compute the same work; the first is regard.

    Args:
        label: its name within the case.
        work: the call to compute.
        contenders: in the order of the report.
        promises: bounds that are expected to hold.
        timed: whether times are measured.
        memory: the names of contenders whose memory is measured, each in a separate process.
    """

    label: str
    work: Work
    contenders: tuple[Contender, ...]
    promises: tuple[Promise, ...] = ()
    timed: bool = True
    memory: tuple[str, ...] = ()


def unpromised(contests: Iterable[Contest]) -> tuple[Contest, ...]:
    """The same contests without promises, for quick runs."""
    return tuple(replace(contest, promises=()) for contest in contests)


@brief
@dataclass(frozen=True)
class Case:
    """Contests on one subject; `quick` are those of a quick run."""

    name: str
    title: str
    contests: tuple[Contest, ...]
    quick: tuple[Contest, ...]
