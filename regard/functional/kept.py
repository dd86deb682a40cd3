"""The cache of plans: equal calls share one plan and are checked once.

A call is looked up by its key. If the key is new, the call is checked and its problem is looked up; calls with equal
problems share a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TypeVar

import torch

from regard.backends import BACKENDS
from regard.core.backend import check_backend
from regard.core.call import UNKNOWN, Call
from regard.core.choosing import make_plan, make_plan_of_shapes
from regard.core.hidden import Place, looks_sound
from regard.core.plan import Plan
from regard.core.problem import PER_ROW
from regard.core.result import Result
from regard.core.shaped import has_no_values
from regard.core.tensors import Stored

Step = Callable[[Call], Result | None]
Kept = TypeVar("Kept")
PLANS_KEPT = 512
OWN_KEPT = 16
_plans: dict[Hashable, Plan] = {}  # by problem and backend
_steps: dict[Hashable, Step] = {}  # by the key of a step
_calls: dict[Hashable, tuple[Plan, Place | None]] = {}  # by the key of a call
_own: dict[Hashable, tuple[Plan, Place | None]] = {}  # likewise, of patterns that hold tensors


def kept_plan(call: Call) -> tuple[Plan, Place | None] | None:
    """The plan and the place of an equal call, as `Plan.compute` takes them, or None."""
    try:
        return _calls.get(key := call.key()) or _own.get(key)
    except UNKNOWN:
        return None


def plan_of(call: Call) -> Plan:
    """The plan of a call in plain numbers; it is kept unless q_start is a tensor or the pattern an explicit mask.

    Raises:
        RegardError: whatever `Call.problem` and `make_plan` refuse.
    """
    try:
        kept = _calls.get(key := call.key()) or _own.get(key)
    except UNKNOWN:
        kept = key = None
    if kept is not None:
        return kept[0]
    problem = call.problem()
    if has_no_values(call.q, call.k, call.v):
        return make_plan_of_shapes(problem, BACKENDS, call.backend)
    if not problem.pattern.by_value:  # the pattern is equal only to itself, and a kept plan keeps its tensors alive
        plan = make_plan(problem, BACKENDS, call.backend)
        if key is not None and problem.pattern.structured and not isinstance(call.q_start, torch.Tensor):
            _keep(_own, key, (plan, None), OWN_KEPT)
        return plan
    check_backend(call.backend, BACKENDS)
    plan = _plans.get((problem, call.backend))
    if plan is None:
        plan = _keep(_plans, (problem, call.backend), make_plan(problem, BACKENDS, call.backend))
    if key is not None and not isinstance(call.q_start, torch.Tensor):
        _keep(_calls, key, (plan, plan.lasting_place(call)))
    return plan


def stepped(call: Call) -> torch.Tensor | None:
    """The output of a decoding step if a kept plan is valid for its k_len too, else None.

    The first call of a kind is planned, as is the second with another k_len. If the plans of the smallest and the
    largest k_len between two powers of two agree on the backend, it computes every k_len between them.
    """
    try:
        step = _steps.get(key := call.step_key())
    except UNKNOWN:
        return None
    if key is None or step is None:
        if key is not None:
            _keep(_steps, key, _seen_once)
        return None
    if step is _seen_once:
        step = _keep(_steps, key, _step_of(call) or _planned_each)
    result = step(call)
    return None if result is None or not looks_sound(result) else result.output


def computing(call: Call) -> Callable[[Call], torch.Tensor | None] | None:
    """A function that computes this call for other tensors of the same shapes; None if its plan is not kept.

    It returns None for a call that needs a look at its numbers.
    """
    if (kept := kept_plan(call)) is not None:
        plan, place = kept
        return lambda call: plan.compute(call, place).output
    step = _steps.get(call.step_key())
    if step is None or step is _seen_once or step is _planned_each:
        return None
    return lambda call: None if (result := step(call)) is None or not looks_sound(result) else result.output


def _seen_once(call: Call) -> Result | None:
    """Stands for the step of a call that was seen once."""
    return None


def _planned_each(call: Call) -> Result | None:
    """Stands for a step that does not exist: every k_len needs a plan of its own."""
    return None


def _step_of(call: Call) -> Step | None:
    """What computes calls like this one for every k_len between two powers of two, if one backend is best for all."""
    problem = call.in_numbers().problem()
    above = 1 << problem.k_len.bit_length()
    if problem.q_start is PER_ROW or (isinstance(call.k, Stored) and call.k.first):
        ends = [problem]
    else:
        ends = [replace(problem, k_len=k_len, q_start=k_len - problem.q_len) for k_len in (above // 2, above - 1)]
    plans = [make_plan(one, BACKENDS, call.backend) for one in ends]
    same = len({plan.backend for plan in plans}) == 1
    return plans[0].steps if same and call.cast() is call else None


def _keep(plans: dict[Hashable, Kept], name: Hashable, plan: Kept, most: int = PLANS_KEPT) -> Kept:
    """Keep a plan, and forget the oldest beyond `most`; other threads, and calls inside this one, may do so too."""
    plans[name] = plan
    for oldest in [*plans][:-most] if len(plans) > most else ():
        plans.pop(oldest, None)
    return plan
