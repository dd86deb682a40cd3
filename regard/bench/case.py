"""What a case is made of: contests between contenders over one work, and the bounds that they are expected to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.arguments import a_string, real
from regard.bench.work import Tensors, Work
from regard.core.plan import Plan
from regard.errors import ArgumentError

KINDS = {
    "faster": "{ours} is {found:.2f}x as fast as {other}, at least {bound:g}x",
    "dearer": "{ours} takes {found:.2f}x the time of {other}, at most {bound:g}x",
    "slower by": "{ours} takes {found:.1f} µs more than {other}, at most {bound:g}",
    "extra memory": "{ours} holds {found:.2f}x the memory of q, k, v and output beside q, k and v, at most {bound:g}x",
    "holds": "{ours} holds {found:.1f} MiB beside what it is given, at most {bound:g}",
    "more memory": "{ours} holds {found:.2f}x the memory of {other}, at most {bound:g}x",
}


@dataclass(frozen=True)
class Promise:
    """A bound between `ours` and `other`, two contenders of one contest; times are medians of CPU time on 1 thread.

    Args:
        kind: "faster" (other's time over ours, at least), "dearer" (our time over other's, at most), "slower by"
            (our time less other's in µs, at most), "extra memory" (our peak beside q, k and v over the bytes of q, k,
            v and output, at most), "holds" (our peak in MiB, at most) or "more memory" (our peak over other's, at
            most).
        ours: the contender that promises.
        other: the one it is compared with; "" where the kind needs none.
        bound: of the number.

    >>> promise = Promise("faster", "regard", "SDPA", 2.0)
    >>> found = promise.found({"regard": {"cpu": {"median": 1.0}}, "SDPA": {"cpu": {"median": 3.0}}}, 0)
    >>> found, promise.kept(found), promise.say(found)
    (3.0, True, 'regard is 3.00x as fast as SDPA, at least 2x: kept')
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
        """The number, from the record of each contender; None where one of them was not measured."""
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
        """Is the number within its bound?"""
        return found >= self.bound if self.kind == "faster" else found <= self.bound

    def say(self, found: float | None) -> str:
        """The promise and what became of it, in one sentence."""
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
    """The work of most contenders: that of their contest."""
    return work


@dataclass(frozen=True)
class Contender:
    """One way to compute a work.

    Args:
        name: as reports show it.
        prepare: from a work and its tensors the call to be timed: it answers with the output, or with the output and
            statistics by name. What a user does once (masks, modules, plans) is done in `prepare`.
        package: what must be installed for it, besides torch; "" for nothing.
        compiles: it takes tens of seconds before its first answer, so a quick run leaves it out.
        device: the only device it runs on; "" for any.
        own_dropout: it drops weights by a law of its own, so its values are checked without dropout.
        own_pattern: it keeps other pairs than the work's pattern: answers (batch or 1, heads or 1, rows, k_len) for
            some rows, once it was prepared.
        works_on: another work than its contest's.
        judged_at: the length at which its values are compared, where they need every row and those are too many.
        plan: for regard itself, the plan that it follows.
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


@dataclass(frozen=True)
class Contest:
    """Contenders over one work, in the order of a report; the first is ours.

    Args:
        label: what tells it apart from the other contests of its case.
        work: what is computed.
        contenders: by whom.
        promises: what is expected to be seen.
        timed: take times.
        memory: the names of those whose memory is measured, each in a process of its own.
    """

    label: str
    work: Work
    contenders: tuple[Contender, ...]
    promises: tuple[Promise, ...] = ()
    timed: bool = True
    memory: tuple[str, ...] = ()


def unpromised(contests: Iterable[Contest]) -> tuple[Contest, ...]:
    """The same as a look at smaller sizes, of which nothing is promised."""
    return tuple(replace(contest, promises=()) for contest in contests)


@dataclass(frozen=True)
class Case:
    """Contests about one subject; `quick` are those of a quick run."""

    name: str
    title: str
    contests: tuple[Contest, ...]
    quick: tuple[Contest, ...]
