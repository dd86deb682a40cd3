"""Calls to one backend, planned anew each time, so that a test may change the sizes of blocks in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from regard.backends import BACKENDS
from regard.core.backend import Offer
from regard.core.call import make_problem
from regard.core.plan import AttentionDetail, make_plan
from regard.core.problem import Problem
from regard.core.result import checked_wants
from regard.testing import make_qkv


def limit_of(backend: str, problem: Problem) -> str | None:
    """The reason with which a backend must refuse a problem by its declared limits, or None if it must compute it."""
    reasons = (limit(problem.projected) for limit in BACKENDS[backend].limits)
    return next((reason for reason in reasons if reason is not None), None)


def _computing(learns: bool = False, device: str = "cpu", patterns: tuple[str, ...] = ("causal",)) -> list[str]:
    """The backends that compute a small call of softmax with one of these patterns, by their declared limits."""
    calls = [make_problem(*make_qkv(requires_grad=learns), pattern=one) for one in patterns]
    problems = [replace(call, device=device) for call in calls]
    return [name for name in BACKENDS if any(limit_of(name, one) is None for one in problems)]


EACH = ("causal", "strided(2)", "causal_window(3)")  # for each backend of softmax one that it computes
HERE = _computing(patterns=EACH)
PLAIN = _computing()  # they compute patterns with nothing to skip
LEARNING = _computing(learns=True, patterns=EACH)  # they have gradients
ON_CUDA = _computing(device="cuda", patterns=EACH)


def ask(backend: str, q: Any, k: Any, v: Any, *, want: Any = (), **options: Any) -> AttentionDetail:
    """The result of `attention_detail` by this backend, or its refusal."""
    seed = options.pop("dropout_seed", None)
    problem = make_problem(q, k, v, want=checked_wants(want), **options)
    plan = make_plan(problem, {backend: BACKENDS[backend]}, backend)
    start = options.get("q_start")
    tensors = {"bias": options.get("bias"), "q_start": start if isinstance(start, torch.Tensor) else None}
    tensors |= {name: options.get(name) for name in ("parameters", "sink")}
    return plan.detail(q, k, v, **tensors, dropout_seed=seed)


def computes(backend: str, q: Any, k: Any, v: Any, *, want: Any = (), **options: Any) -> bool:
    """Whether this backend offers to compute a call. The grid checks that it offers what it should."""
    options.pop("dropout_seed", None)
    return isinstance(
        BACKENDS[backend].assess(make_problem(q, k, v, want=checked_wants(want), **options).projected), Offer
    )


def computing(q: Any, k: Any, v: Any, **options: Any) -> list[str]:
    """The backends that offer to compute a call; at least two, so that a test never covers only the reference."""
    found = [backend for backend in BACKENDS if computes(backend, q, k, v, **options)]
    assert "reference" in found
    assert len(found) > 1, "only the reference computes this"
    return found
