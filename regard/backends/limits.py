"""What a backend does not compute, as a declaration from which its refusals follow.

A backend has `limits`, functions from a problem to the reason for refusing it, or None, which are asked in order. A
problem that passes all limits is computed, except where `strict=True` forbids it. Tests read the same declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from regard.core.backend import Offer, Refusal
from regard.core.problem import PER_ROW, Problem
from regard.mechanisms import Mechanism
from regard.reprs import Described

Limit = Callable[[Problem], str | None]


@dataclass(frozen=True)
class Condition:
    """A limit for the problems of which `applies` holds; braces in the reason hold what to read of the problem."""

    applies: Callable[[Problem], object]
    reason: str

    def __call__(self, problem: Problem) -> str | None:
        return self.because(problem) if self.applies(problem) else None

    def because(self, problem: Problem) -> str:
        """The reason in the words of a problem."""
        return self.reason.format(problem=problem, pattern=problem.pattern)


def refusal_by(limits: Iterable[Limit], problem: Problem) -> Refusal | None:
    """The refusal of a problem by the first limit that it exceeds, or None.

    Every backend asks its limits of every new problem, so a `Condition` is asked without a function between.
    """
    for limit in limits:
        if isinstance(limit, Condition):
            reason = limit.because(problem) if limit.applies(problem) else None
        else:
            reason = limit(problem)
        if reason is not None:
            return Refusal(reason)
    return None


class Limited(Described):
    """A backend with limits: `offer` is given the problems that exceed none of them."""

    limits: tuple[Limit, ...]
    precise = False  # it may round weights to half precision

    def assess(self, problem: Problem) -> Offer | Refusal:
        refusal = refusal_by(self.limits, problem)
        if refusal is not None:
            return refusal
        return self.offer(problem)

    def offer(self, problem: Problem) -> Offer | Refusal:
        raise NotImplementedError


def where(applies: Callable[[Problem], object] | str, reason: str) -> Condition:
    """A limit for the problems of which a function holds, or of which the property with this name is true."""
    return Condition(attrgetter(applies) if isinstance(applies, str) else applies, reason)


def on_mechanism(kind: type[Mechanism] | tuple[type[Mechanism], ...], computes: str) -> Limit:
    """For some kinds of mechanisms, whose computation these words name."""
    return where(
        lambda problem: not isinstance(problem.mechanism, kind),
        f"it computes {computes}, not {{problem.mechanism}}",
    )


def on_softmax(problem: Problem) -> str | None:
    """For softmax of any score."""
    if problem.mechanism.is_softmax:
        return None
    return f"it computes softmax attention, not {problem.mechanism}"


def on_one_start(problem: Problem) -> str | None:
    """For batch rows whose queries have the same positions."""
    if problem.q_start is not PER_ROW:
        return None
    return "q_start is a tensor, so the plan does not know the positions of the queries"


def no_weights(problem: Problem) -> str | None:
    """For calls that want no statistic, or log_sum_exp alone."""
    of_weights = [str(want) for want in problem.want if want != "log_sum_exp"]
    if not of_weights:
        return None
    return f"it does not compute the weights, which {', '.join(of_weights)} needs"


# For softmax over dot products: the reason is a property of the problem, which computes it once.
on_dot_products: Limit = attrgetter("not_dot_product")
not_empty = where("empty", "there is nothing to compute")
on_structure = where(
    lambda problem: not problem.pattern.structured,
    "{pattern} has no structure and can only be evaluated pair by pair",
)
