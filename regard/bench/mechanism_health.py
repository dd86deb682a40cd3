"""Small problems of every mechanism beside softmax, for the backends that compute them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from regard.bench.case import Contender, Contest
from regard.bench.judging import judge
from regard.bench.work import Tensors, Work, make_tensors
from regard.kernels import BACKENDS
from regard.mechanisms import LSH, Additive, LinearTransformer, Linformer, Mechanism, Performer, RandomFeature, Softmax
from regard.offer import Refusal
from regard.patterns import Causal, Full, Pattern
from regard.plan import make_plan
from regard.problem import make_problem

LENGTH = 67


def _work(mechanism: Mechanism, pattern: Pattern) -> Work:
    kv_heads = 4 if mechanism.shares_keys else 2
    return Work(LENGTH, heads=4, kv_heads=kv_heads, head_dim=16, pattern=pattern, mechanism=mechanism, backward=True)


WORKS = {
    "additive": _work(Softmax(Additive(16, 16, 8)), Causal()),
    "linear": _work(LinearTransformer(), Causal()),
    "performer": _work(Performer(features=32), Full()),
    "random feature": _work(RandomFeature(features=32), Causal()),
    "Linformer": _work(Linformer(length=LENGTH, rank=8), Full()),
    "LSH": _work(LSH(chunk=8, buckets=8, rounds=2), Causal()),
}


def try_mechanisms(backend: str, device: str) -> tuple[dict[str, float], dict[str, str]]:
    """Errors in units of their bound, and what is wrong, by the names of the problems that a backend offers to compute.

    A backend that computes other mechanisms is not asked to explain itself: each is for some of them.
    """
    errors: dict[str, float] = {}
    wrong: dict[str, str] = {}
    for name, on_cpu in WORKS.items():
        work = replace(on_cpu, device=device)
        problem = make_problem(*_tensors(make_tensors(work)), **_options(work, make_tensors(work)))
        if isinstance(BACKENDS[backend].assess(problem.lowered), Refusal):
            continue
        contender = Contender(backend, lambda work, tensors: lambda: _attend(backend, work, tensors))
        try:
            verdict = judge(Contest(name, work, (contender,)), contender)
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"
            continue
        errors[name] = max(verdict.errors.values())
        if not verdict.right:
            wrong[name] = f"the errors are {verdict} times what rounding may do"
    return errors, wrong


def _attend(backend: str, work: Work, tensors: Tensors) -> torch.Tensor:
    options = _options(work, tensors)
    plan = make_plan(make_problem(*_tensors(tensors), **options), {backend: BACKENDS[backend]}, backend)
    return plan.run(*_tensors(tensors), parameters=options["parameters"])


def _tensors(tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tensors.q, tensors.k, tensors.v


def _options(work: Work, tensors: Tensors) -> dict[str, Any]:
    return {"pattern": work.pattern, "mechanism": work.mechanism, "parameters": tensors.parameters or None}
