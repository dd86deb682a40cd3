"""Calls to one backend, planned anew each time, so that a test may change the sizes of blocks in between."""

from typing import Any

import pytest
import torch
from fuzz.judging import EACH, SMALL, takes_softmax

from regard.backends import BACKENDS
from regard.core.backend import Offer
from regard.core.call import make_problem
from regard.core.plan import AttentionDetail, make_plan
from regard.core.result import checked_wants

HERE = takes_softmax(EACH)
PLAIN = takes_softmax(("causal",))  # they compute patterns with nothing to skip
LEARNING = takes_softmax(EACH, learns=True)  # they have gradients


def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut everything into small blocks, so that small calls reach the code that otherwise only large calls reach."""
    for module, name, size in SMALL:
        monkeypatch.setattr(module, name, size)


def ask(backend: str, q: Any, k: Any, v: Any, *, want: Any = (), **options: Any) -> AttentionDetail:
    """The result of `attention_detail` by this backend, or its refusal."""
    seed = options.pop("dropout_seed", None)
    problem = make_problem(q, k, v, want=checked_wants(want), **options)
    plan = make_plan(problem, {backend: BACKENDS[backend]}, backend)
    start = options.get("q_start")
    tensors = {
        "bias": options.get("bias"),
        "q_start": start if isinstance(start, torch.Tensor) else None,
    }
    tensors |= {name: options.get(name) for name in ("parameters", "sink")}
    return plan.detail(q, k, v, **tensors, dropout_seed=seed)


def computes(backend: str, q: Any, k: Any, v: Any, *, want: Any = (), **options: Any) -> bool:
    """Whether this backend offers to compute a call. The fuzzer checks that it offers what it should."""
    options.pop("dropout_seed", None)
    return isinstance(
        BACKENDS[backend].assess(
            make_problem(q, k, v, want=checked_wants(want), **options).projected
        ),
        Offer,
    )


def computing(q: Any, k: Any, v: Any, **options: Any) -> list[str]:
    """The backends that offer to compute a call; at least two, so that a test never covers only the reference."""
    found = [backend for backend in BACKENDS if computes(backend, q, k, v, **options)]
    assert "reference" in found
    assert len(found) > 1, "only the reference computes this"
    return found
