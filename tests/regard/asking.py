"""Calls to one backend, planned in each call, so that a test may change the sizes of blocks in between."""

from collections.abc import Iterable
from typing import Any

import pytest
from fuzz.judging import EACH, SMALL, planned, takes_softmax

from regard.backends import BACKENDS
from regard.core.backend import Offer
from regard.core.call import make_problem
from regard.core.plan import AttentionDetail
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
    return planned(backend, {"q": q, "k": k, "v": v}, want, options)


def computes(backend: str, q: Any, k: Any, v: Any, *, want: Any = (), **options: Any) -> bool:
    """Whether this backend offers to compute a call. The fuzzer checks that it offers what it should."""
    options.pop("dropout_seed", None)
    problem = make_problem(q, k, v, want=checked_wants(want), **options)
    return isinstance(BACKENDS[backend].assess(problem.projected), Offer)


def among(backends: Iterable[str], q: Any, k: Any, v: Any, **options: Any) -> list[str]:
    """Those of these backends that offer to compute a call."""
    return [backend for backend in backends if computes(backend, q, k, v, **options)]


def computing(q: Any, k: Any, v: Any, **options: Any) -> list[str]:
    """The backends that offer to compute a call; at least two, so that a test never covers only the reference."""
    names = among(BACKENDS, q, k, v, **options)
    assert "reference" in names
    assert len(names) > 1, "only the reference computes this"
    return names
