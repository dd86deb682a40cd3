"""Calls to one backend, planned anew each time, so that a test may change the sizes of blocks in between."""

from __future__ import annotations

from typing import Any

import torch

from regard.backends import BACKENDS
from regard.backends.native.library import load
from regard.core.backend import Offer
from regard.core.call import make_problem
from regard.core.plan import AttentionDetail, make_plan
from regard.core.result import checked_wants

OTHERS = ("linear", "linformer", "lsh")  # they compute mechanisms beside softmax: see test_mechanisms.py
# flex computes on cuda alone, native where its library is built
ELSEWHERE = ("flex", "native") if isinstance(load(), str) else ("flex",)
HERE = [name for name in BACKENDS if name not in (*ELSEWHERE, *OTHERS)]
PLAIN = [name for name in HERE if name != "tiled"]  # they compute patterns with nothing to skip
LEARNING = [name for name in HERE if name != "decode"]  # they have gradients


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
