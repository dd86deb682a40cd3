"""A check of every backend on small problems: values and gradients against the oracle, as `regard doctor` runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from regard.backends import BACKENDS
from regard.core.backend import Refusal
from regard.core.call import make_problem
from regard.core.plan import make_plan
from regard.testing.budget import Budget
from regard.testing.cases import make_qkv
from regard.testing.oracle import Answer, answer, kept_weights

SEED = 5


@dataclass(frozen=True)
class Probe:
    """A small problem: pattern text, its formula on positions i and j, lengths, and the options of the call."""

    name: str
    pattern: str
    formula: Callable[[Any, Any], Any]
    q_len: int = 67
    k_len: int = 67
    options: tuple[tuple[str, Any], ...] = ()
    learned_bias: bool = False


PROBES = (
    Probe("full", "full", lambda i, j: i + j >= 0),
    Probe("causal", "causal", lambda i, j: j <= i),
    Probe("sliding window", "sliding_window(8)", lambda i, j: abs(i - j) <= 4),
    Probe(
        "strided", "causal & strided(8)", lambda i, j: (j <= i) & ((i - j < 8) | ((i - j) % 8 == 0))
    ),
    Probe(
        "global tokens",
        "sliding_window(8) | global_tokens(0, 40)",
        lambda i, j: (abs(i - j) <= 4) | (i == 0) | (j == 0) | (i == 40) | (j == 40),
    ),
    Probe("key span", "causal & key_span(3, 60)", lambda i, j: (j <= i) & (j >= 3) & (j < 60)),
    Probe("one query", "causal", lambda i, j: j <= i, q_len=1, k_len=131),
    Probe("softcap", "causal", lambda i, j: j <= i, options=(("softcap", 2.0),)),
    Probe(
        "dropout",
        "full",
        lambda i, j: i + j >= 0,
        options=(("dropout", 0.3), ("dropout_seed", SEED)),
    ),
    Probe("learned bias", "causal", lambda i, j: j <= i, learned_bias=True),
)


@dataclass
class Findings:
    """The results of one backend on one device, by the name of the probe: errors relative to the bound, and reasons."""

    backend: str
    device: str
    errors: dict[str, float] = field(default_factory=dict)
    gradients: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """ "wrong", "refused" (every probe) or "ok"."""
        if self.wrong:
            return "wrong"
        return "ok" if self.errors else "refused"


def check_backend(name: str, device: str = "cpu") -> Findings:
    """The results of a backend for every probe, with gradients where it computes them.

    >>> check_backend("reference").status
    'ok'
    """
    found = Findings(name, device)
    for probe in PROBES:
        _try(found, probe, _question_of(probe))
    return found


@dataclass(frozen=True)
class _Question:
    """A probe's tensors on the CPU, the result of the oracle, and the rounding budget."""

    tensors: dict[str, torch.Tensor]
    grad: torch.Tensor
    expected: Answer
    budget: Budget


@cache
def _question_of(probe: Probe) -> _Question:
    q, k, v = make_qkv(
        heads=4, kv_heads=2, q_len=probe.q_len, k_len=probe.k_len, head_dim=16, v_dim=16
    )
    generator = torch.Generator().manual_seed(SEED)
    grad = torch.randn(*q.shape[:3], v.shape[-1], generator=generator)
    bias = (
        torch.randn(1, q.shape[1], probe.q_len, probe.k_len, generator=generator)
        if probe.learned_bias
        else None
    )
    i = np.arange(probe.q_len)[:, None] + (probe.k_len - probe.q_len)
    j = np.arange(probe.k_len)
    dropout = dict(probe.options).get("dropout", 0.0)
    factors = None
    if dropout:
        factors = kept_weights(dropout, SEED, q.shape[0], q.shape[1], i[:, 0], j) / (1 - dropout)
    scale = q.shape[-1] ** -0.5
    expected = answer(
        q,
        k,
        v,
        probe.formula(i, j),
        scale=scale,
        softcap=dict(probe.options).get("softcap"),
        bias=bias,
        factors=factors,
        grad_output=grad,
    )
    budget = Budget.of(
        q,
        k,
        v,
        torch.float32,
        scale=scale,
        bias=bias,
        grad_output=grad,
        dropout=dropout,
        answer=expected,
    )
    tensors = {"dq": q, "dk": k, "dv": v} | ({} if bias is None else {"dbias": bias})
    return _Question(tensors, grad, expected, budget)


def _try(result: Findings, probe: Probe, question: _Question) -> None:
    """Run a probe with gradients if the backend computes them, else without, else record the refusal."""
    for gradients in (True, False):
        tensors = {
            name: x.to(result.device, copy=True).requires_grad_(gradients)
            for name, x in question.tensors.items()
        }
        q, k, v, bias = (tensors.get(name) for name in ("dq", "dk", "dv", "dbias"))
        assert q is not None
        assert k is not None
        assert v is not None
        given: dict[str, Any] = {"pattern": probe.pattern, "bias": bias, **dict(probe.options)}
        seed = given.pop("dropout_seed", None)
        problem = make_problem(q, k, v, **given)
        verdict = BACKENDS[result.backend].assess(problem)
        if isinstance(verdict, Refusal):
            result.refused[probe.name] = verdict.reason
            continue
        result.refused.pop(probe.name, None)
        try:
            # not a cached plan, which may be older than the backend
            plan = make_plan(problem, BACKENDS, result.backend)
            run = partial(plan.run, q, k, v, bias=bias, dropout_seed=seed)
            _judge(result, probe, question, tensors if gradients else {}, run)
        except Exception as error:
            result.wrong[probe.name] = f"{type(error).__name__}: {error}"
        return


def _judge(
    result: Findings,
    probe: Probe,
    question: _Question,
    leaves: dict[str, torch.Tensor],
    run: Callable[[], torch.Tensor],
) -> None:
    answers = {"output": run()}
    if leaves:
        gradients = torch.autograd.grad(
            answers["output"], list(leaves.values()), question.grad.to(result.device)
        )
        answers |= dict(zip(leaves, gradients, strict=True))
        result.gradients.append(probe.name)
    errors = {
        name: question.budget.share(name, x, getattr(question.expected, name))
        for name, x in answers.items()
    }
    worst = max(errors, key=lambda name: errors[name])
    result.errors[probe.name] = errors[worst]
    if not errors[worst] <= 1:
        result.wrong[probe.name] = (
            f"the error of {worst} is {errors[worst]:.3g} times the rounding bound"
        )
