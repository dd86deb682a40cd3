"""What a backend does not compute, as a declaration from which its refusals follow.

A backend has `limits`, functions from a problem to the reason for refusing it, or None, which are asked in order. A
problem that passes all limits is computed, except where `strict=True` forbids it. Tests read the same declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from regard.core.backend import Offer, Refusal
from regard.core.problem import PER_ROW, Problem
from regard.mechanisms import Mechanism
from regard.reprs import Described

Limit = Callable[[Problem], str | None]


def refused(limits: Iterable[Limit], problem: Problem) -> Refusal | None:
    """The refusal of a problem by the first limit that it exceeds, or None."""
    return next(
        (Refusal(reason) for limit in limits if (reason := limit(problem)) is not None), None
    )


class Limited(Described):
    """A backend with limits: `offer` is given the problems that exceed none of them."""

    limits: tuple[Limit, ...]
    precise = False

    def assess(self, problem: Problem) -> Offer | Refusal:
        refusal = refused(self.limits, problem)
        return self.offer(problem) if refusal is None else refusal

    def offer(self, problem: Problem) -> Offer | Refusal:
        raise NotImplementedError


def where(applies: Callable[[Problem], bool], reason: str) -> Limit:
    """A limit for the problems of which this holds; braces in the reason hold what to read of the problem."""
    return lambda problem: (
        reason.format(problem=problem, pattern=problem.pattern) if applies(problem) else None
    )


def on_mechanism(kind: type[Mechanism] | tuple[type[Mechanism], ...], computes: str) -> Limit:
    """For some kinds of mechanisms, whose computation these words name."""
    return where(
        lambda one: not isinstance(one.mechanism, kind),
        f"it computes {computes}, not {{problem.mechanism}}",
    )


def on_softmax(problem: Problem) -> str | None:
    """For softmax of any score."""
    return (
        None
        if problem.mechanism.is_softmax
        else f"it computes softmax attention, not {problem.mechanism}"
    )


def on_dot_products(problem: Problem) -> str | None:
    """For softmax over dot products."""
    return problem.not_dot_product


def on_one_start(problem: Problem) -> str | None:
    """For batch rows whose queries have the same positions."""
    if problem.q_start is not PER_ROW:
        return None
    return "q_start is a tensor, so the plan does not know the positions of the queries"


def no_weights(problem: Problem) -> str | None:
    """For calls that want no statistic, or log_sum_exp alone."""
    names = ", ".join(str(one) for one in problem.want if one != "log_sum_exp")
    return f"it does not compute the weights, which {names} needs" if names else None


not_empty = where(lambda problem: problem.empty, "there is nothing to compute")
on_structure = where(
    lambda problem: not problem.pattern.structured,
    "{pattern} has no structure and can only be evaluated pair by pair",
)
