"""Plans by value: what one call was told, every equal call knows.

A call is first looked up by what can be seen at a glance; only an unknown one is checked, posed as a problem and
planned. Two ways of posing one problem share its plan.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch.autograd import forward_ad

from regard.bias import Bias
from regard.kernels import BACKENDS
from regard.mechanisms import Mechanism
from regard.offer import check_backend
from regard.patterns import Pattern
from regard.plan import Plan, make_plan, make_plan_of_shapes
from regard.problem import make_problem
from regard.shaped import has_no_values
from regard.statistics import Want
from regard.stored import Stored

PLANS_KEPT = 512
_plans: OrderedDict[Hashable, Plan] = OrderedDict()  # by problem and backend
_calls: OrderedDict[Hashable, Plan] = OrderedDict()  # by what a call looks like


def planned(
    q: torch.Tensor,
    k: torch.Tensor | Stored,
    v: torch.Tensor | Stored,
    *,
    pattern: Pattern | str | None = None,
    mechanism: Mechanism | None = None,
    bias: torch.Tensor | Bias | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    q_start: int | torch.Tensor | None = None,
    want: tuple[Want, ...] = (),
    strict: bool = False,
    backend: str = "auto",
    parameters: Mapping[str, torch.Tensor] | None = None,
) -> Plan:
    """The plan of a call; arguments and errors are those of `attention` and `make_problem`."""
    options = (pattern, mechanism, softcap, scale, dropout, q_start, want, strict, backend)
    tangents = forward_ad._current_level >= 0  # no look tells which of the tensors carry one
    try:
        look = (*_looks(q), *_looks(k), *_looks(v), torch.is_grad_enabled(), options, *map(type, options))
        if parameters:
            look = (*look, *((name, *_looks(one)) for name, one in sorted(parameters.items())))
        if bias is not None:
            look = None if isinstance(bias, Bias) else (*look, "bias", *_looks(bias))
        plan = None if look is None or tangents else _calls.get(look)
    except (AttributeError, TypeError, ValueError, RuntimeError):  # the checks below say what is wrong
        look = plan = None
    if plan is not None:
        return plan
    problem = make_problem(
        q, k, v, pattern=pattern, mechanism=mechanism, bias=bias, softcap=softcap, scale=scale, dropout=dropout,
        q_start=q_start, want=want, strict=strict, parameters=parameters,
    )  # fmt: skip
    if has_no_values(q, k, v):
        return make_plan_of_shapes(problem, BACKENDS, backend)
    if not problem.pattern.by_value:  # equal only to itself: its plan is not worth keeping
        return make_plan(problem, BACKENDS, backend)
    check_backend(backend, BACKENDS)
    plan = _plans.get((problem, backend))
    if plan is None:
        plan = _kept(_plans, (problem, backend), make_plan(problem, BACKENDS, backend))
    if look is not None and not tangents and not isinstance(q_start, torch.Tensor):
        _kept(_calls, look, plan)
    return plan


def _looks(x: torch.Tensor | Stored) -> tuple[Any, ...]:
    return type(x), x.shape, x.dtype, x.device, getattr(x, "layout", None), x.requires_grad


def _kept(plans: OrderedDict[Hashable, Plan], name: Hashable, plan: Plan) -> Plan:
    plans[name] = plan
    if len(plans) > PLANS_KEPT:
        plans.popitem(last=False)
    return plan
