"""What backends answer with when they are asked about a problem: an offer with its cost, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from regard.detail import Result
from regard.errors import ArgumentError
from regard.kinds import shown
from regard.operands import Operands
from regard.problem import Problem

# Floating-point operations while a byte moves, and while a call is launched: measured on CPU, estimated for cuda.
MEANWHILE = {"cpu": (8.0, 1e6), "cuda": (50.0, 1e9)}


@dataclass(frozen=True)
class Cost:
    """What a backend would spend: floating-point operations, bytes moved, bytes held at once beyond in- and output.

    `pairs` are the query-key pairs it computes, allowed or not, `calls` the operations it launches; `estimated`: the
    numbers come from a sample of the row blocks.
    """

    flops: float
    bytes: float
    peak_bytes: float
    pairs: int
    calls: int = 1
    estimated: bool = False

    def work_on(self, device: str) -> float:
        """What backends are compared by, in floating-point operations: so many as the machine does meanwhile."""
        a_byte, a_call = MEANWHILE.get(device, MEANWHILE["cpu"])
        return self.flops + a_byte * self.bytes + a_call * self.calls

    def __str__(self) -> str:
        about = "about " if self.estimated else ""
        return (
            f"{about}{short(self.flops)}FLOP, {short(self.bytes)}B moved, {short(self.peak_bytes)}B beside the tensors"
        )


@dataclass(frozen=True)
class Refusal:
    """Why a backend does not compute a problem."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class Offer:
    """What computing a problem would cost, and the function that does it.

    `takes_stored`: it reads keys and values as a cache stores them; otherwise they are widened to q's dtype first.
    """

    cost: Cost
    run: Callable[[Operands], Result]
    takes_stored: bool = False


class Backend(Protocol):
    """A way to compute problems: it answers with an offer or the reason why not."""

    name: str

    def assess(self, problem: Problem) -> Offer | Refusal: ...


def check_backend(backend: str, backends: Collection[str]) -> None:
    """Raise an ArgumentError unless it is "auto" or a name there is."""
    if not isinstance(backend, str) or (backend != "auto" and backend not in backends):
        raise ArgumentError(f"backend {shown(backend)} does not exist; there are auto, {', '.join(backends)}")


def short(number: float) -> str:
    """A number in three digits and a prefix."""
    for unit in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} P"
