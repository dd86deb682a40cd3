"""regard as a contender, by its public functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from regard.core.plan import Plan
from regard.core.result import Want
from regard.core.tensors import Stored
from regard.functional import attention, attention_detail, plan_attention
from regard_lab.bench.case import Attend, Contender
from regard_lab.bench.work import Tensors, Work

DROPOUT_SEED = 11
WHOLE = 512  # up to this length every row is checked


def options(work: Work, tensors: Tensors) -> dict[str, Any]:
    """The keyword arguments of `attention` for a work."""
    keywords: dict[str, Any] = {"pattern": work.pattern}
    if work.mechanism is not None:
        keywords |= {"mechanism": work.mechanism, "parameters": tensors.parameters}
    if work.dropout:
        keywords |= {"dropout": work.dropout, "dropout_seed": DROPOUT_SEED}
    return keywords | ({} if tensors.bias is None else {"bias": tensors.bias})


def keys_and_values(work: Work, tensors: Tensors) -> tuple[Any, Any]:
    """k and v as stored in the work's cache."""
    if work.cache_dtype is None:
        return tensors.k, tensors.v
    dtype = getattr(torch, work.cache_dtype)
    return Stored(tensors.k.to(dtype)), Stored(tensors.v.to(dtype))


def plan_of(work: Work, tensors: Tensors, want: tuple[Want, ...] = ()) -> Plan:
    """The plan of the work."""
    k, v = keys_and_values(work, tensors)
    return plan_attention(tensors.q, k, v, want=want, **options(work, tensors))


def _by_attention(work: Work, tensors: Tensors) -> Attend:
    k, v = keys_and_values(work, tensors)
    given = options(work, tensors)
    return lambda: attention(tensors.q, k, v, **given)


def _by_plan(work: Work, tensors: Tensors) -> Attend:
    k, v = keys_and_values(work, tensors)
    plan = plan_of(work, tensors)
    if tensors.bias is None and not work.dropout:
        return lambda: plan.run(tensors.q, k, v)
    return lambda: plan.run(tensors.q, k, v, bias=tensors.bias, dropout_seed=DROPOUT_SEED)


def _with(want: Want) -> Callable[[Work, Tensors], Attend]:
    """Attention with one statistic; `top_keys` is checked by its weights, since equal weights may be in any order."""
    name = want if isinstance(want, str) else "top_weights"

    def prepare(work: Work, tensors: Tensors) -> Attend:
        given = options(work, tensors)

        def attend() -> dict[str, torch.Tensor]:
            detail = attention_detail(tensors.q, tensors.k, tensors.v, want=want, **given)
            statistic = detail.top_keys.weights if name == "top_weights" else getattr(detail, name)
            return {"output": detail.output, name: statistic}

        return attend

    return prepare


REGARD = Contender("regard", _by_attention, plan=plan_of)
PLAN_RUN = Contender("regard, plan.run", _by_plan, plan=plan_of)
TWICE_AS_LONG = replace(REGARD, name="regard, twice as long", works_on=lambda work: work.as_long_as(2 * work.q_len))


def at_length(length: int) -> Contender:
    """regard at another length, checked at a shorter one."""
    return replace(
        REGARD, name=f"regard, n={length:,}", works_on=lambda work: work.as_long_as(length), judged_at=4 * WHOLE
    )


def with_statistic(want: Want) -> Contender:
    """regard with a statistic besides the output."""
    return Contender(
        f"regard + {want}", _with(want), judged_at=WHOLE if want == "received" else None,
        plan=lambda work, tensors: plan_of(work, tensors, (want,)),
    )  # fmt: skip
