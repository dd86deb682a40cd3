"""Which backend computes a problem: the cheapest of those that do not refuse it."""

from __future__ import annotations

from typing import Any

from regard.core.backend import Backend, Offer, Refusal, check_backend, reachable_keys, short
from regard.core.plan import Plan
from regard.core.problem import Problem
from regard.core.shaped import NAME as SHAPES
from regard.core.shaped import offer_of_shapes
from regard.errors import UnsupportedError

# A backend that needs more memory beside the tensors, and more than 4 times the tensors, runs only if it is named.
UNASKED_BYTES = 4 * 2**30
FORWARD_MODE = "reference"  # the one backend that consists of operations with forward-mode derivatives


def make_plan(problem: Problem, backends: dict[str, Backend], backend: str = "auto") -> Plan:
    """The plan with the cheapest backend for a problem, or with the named one.

    Raises:
        UnsupportedError: no backend, or not the named one, computes this problem; with all reasons.
    """
    check_backend(backend, backends)
    lowered = problem.lowered
    most = max(UNASKED_BYTES, 4 * problem.nbytes)
    verdicts = {name: _verdict(name, one, lowered) for name, one in backends.items()}
    offers = {name: verdict for name, verdict in verdicts.items() if isinstance(verdict, Offer)}
    if backend != "auto" and backend not in offers:
        raise UnsupportedError(
            f"backend {backend!r} does not compute this call: {verdicts[backend]}; use backend='auto' for one that does"
        )
    if not offers:
        reasons = "; ".join(f"{name}: {verdict}" for name, verdict in verdicts.items())
        raise UnsupportedError(f"no backend computes {problem}: {reasons}")
    answers = {one: verdict.cost for one, verdict in verdicts.items()}
    expense = lambda one: (offers[one].cost.peak_bytes > most, offers[one].cost.work_on(problem.device))  # noqa: E731
    name = min(offers, key=expense) if backend == "auto" else backend
    cost = offers[name].cost
    if backend == "auto" and cost.peak_bytes > most:
        raise UnsupportedError(f"{problem}: {_too_large(name, offers, answers)}; name backend={name!r} to allow it")
    others = tuple((other, answer) for other, answer in answers.items() if other != name)
    return Plan(problem, name, cost, others, reachable_keys(problem), offers[name])


def _too_large(name: str, offers: dict[str, Offer], answers: dict[str, Any]) -> str:
    """That every offer is above the memory that is used unasked, and what each backend answered."""
    if len(offers) == 1:
        who, most = f"only backend {name!r} computes this, and it would hold", offers[name].cost.peak_bytes
        answers = {other: answer for other, answer in answers.items() if other != name}
    else:
        who = "every backend that computes this would hold at least"
        most = min(offer.cost.peak_bytes for offer in offers.values())
    reasons = "; ".join(f"{other}: {answer}" for other, answer in answers.items())
    return f"{who} {short(most)}B at once ({reasons})"


def make_plan_of_shapes(problem: Problem, backends: dict[str, Backend], backend: str = "auto") -> Plan:
    """The plan of tensors without values, which computes nothing."""
    check_backend(backend, backends)
    offer = offer_of_shapes()
    return Plan(problem, SHAPES, offer.cost, (), range(problem.k_len), offer)


def _verdict(name: str, backend: Backend, problem: Problem) -> Offer | Refusal:
    if problem.forward_mode and name != FORWARD_MODE:
        return Refusal(f"it has no forward-mode derivatives; only {FORWARD_MODE} has")
    return backend.assess(problem)
