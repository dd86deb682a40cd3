"""What a contest is expected to show: a bound on one number, kept or missed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard.arguments import real
from regard.errors import ArgumentError
from regard.kinds import a_string

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
