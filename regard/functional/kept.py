"""The cache of plans: equal calls share one plan and are checked once.

A call is looked up by its key. If the key is new, the call is checked and its problem is looked up; calls with equal
problems share a plan.
"""

from __future__ import annotations

from collections import OrderedDict
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
from regard.patterns import Pattern

Step = Callable[[Call], Result | None]
Kept = TypeVar("Kept")
PLANS_KEPT = 512
_plans: OrderedDict[Hashable, Plan] = OrderedDict()  # by problem and backend
_steps: OrderedDict[Hashable, Step] = OrderedDict()  # by the key of a step
_calls: OrderedDict[Hashable, tuple[Plan, Place | None]] = OrderedDict()  # by the key of a call


def kept_plan(call: Call) -> tuple[Plan, Place | None] | None:
    """The plan and the place of an equal call, as `Plan.compute` takes them, or None."""
    try:
        return _calls.get(call.key())
    except UNKNOWN:
        return None


def plan_of(call: Call) -> Plan:
    """The plan of a call in plain numbers; it is kept unless the pattern or q_start holds a tensor.

    Raises:
        RegardError: whatever `Call.problem` and `make_plan` refuse.
    """
    try:
        kept = _calls.get(key := call.key())
    except UNKNOWN:
        kept = key = None
    if kept is not None:
        return kept[0]
    problem = call.problem()
    if has_no_values(call.q, call.k, call.v):
        return make_plan_of_shapes(problem, BACKENDS, call.backend)
    if not problem.pattern.by_value:  # the pattern is equal only to itself, so no other call could use the plan
        return make_plan(problem, BACKENDS, call.backend)
    check_backend(call.backend, BACKENDS)
    plan = _plans.get((problem, call.backend))
    if plan is None:
        plan = _keep(_plans, (problem, call.backend), make_plan(problem, BACKENDS, call.backend))
    if key is not None and not isinstance(call.q_start, torch.Tensor):
        _keep(_calls, key, (plan, plan.lasting_place(call)))
    return plan


def stepped(call: Call) -> torch.Tensor | None:
    """The output of a step of decoding whose plan holds for its k_len too, or None.

    The first call of a kind is planned, as is the second with another k_len. If the plans of the smallest and the
    largest k_len between two powers of two agree on the backend, it computes every k_len between them.
    """
    try:
        step = _steps.get(key := call.step_key())
    except UNKNOWN:
        return None
    if key is None or step is None:
        if key is not None and (not isinstance(call.pattern, Pattern) or call.pattern.by_value):
            _keep(_steps, key, _seen_once)
        return None
    if step is _seen_once:
        step = _keep(_steps, key, _step_of(call) or _planned_each)
    result = step(call)
    return None if result is None or not looks_sound(result.output) else result.output


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


def _keep(plans: OrderedDict[Hashable, Kept], name: Hashable, plan: Kept) -> Kept:
    plans[name] = plan
    if len(plans) > PLANS_KEPT:
        plans.popitem(last=False)
    return plan
