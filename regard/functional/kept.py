"""The cache of plans: equal calls share one plan and are checked once.

A call is looked up by its key. If the key is new, the call is checked and its problem is looked up; calls with equal
problems share a plan.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

import torch

from regard.backends import BACKENDS
from regard.core.backend import check_backend
from regard.core.call import UNKNOWN, Call
from regard.core.hidden import Place
from regard.core.plan import Plan, make_plan, make_plan_of_shapes
from regard.core.shaped import has_no_values

Kept = TypeVar("Kept")
PLANS_KEPT = 512
_plans: OrderedDict[Hashable, Plan] = OrderedDict()  # by problem and backend
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
        _keep(_calls, key, (plan, plan.lasting_place(call.q.device)))
    return plan


def _keep(plans: OrderedDict[Hashable, Kept], name: Hashable, plan: Kept) -> Kept:
    plans[name] = plan
    if len(plans) > PLANS_KEPT:
        plans.popitem(last=False)
    return plan
