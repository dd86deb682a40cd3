"""A check of every backend on small problems: values and gradients against the oracle, as `regard doctor` runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
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


def _full(i: Any, j: Any) -> Any:
    return i + j >= 0


def _causal(i: Any, j: Any) -> Any:
    return j <= i


def _near(i: Any, j: Any) -> Any:
    return abs(i - j) <= 4


def _strided(i: Any, j: Any) -> Any:
    return (j <= i) & ((i - j < 8) | ((i - j) % 8 == 0))


def _near_or_global(i: Any, j: Any) -> Any:
    return _near(i, j) | (i == 0) | (j == 0) | (i == 40) | (j == 40)


def _causal_in_span(i: Any, j: Any) -> Any:
    return (j <= i) & (j >= 3) & (j < 60)


def _in_image_window(i: Any, j: Any) -> Any:
    """Windows of 3 x 3 cells on a grid of 8 x 9, from the second cell of each axis on."""
    same_row = (i // 9 - 1) // 3 == (j // 9 - 1) // 3
    same_column = (i % 9 - 1) // 3 == (j % 9 - 1) // 3
    return same_row & same_column


DROPOUT = (("dropout", 0.3), ("dropout_seed", SEED))

PROBES = (
    Probe("full", "full", _full),
    Probe("causal", "causal", _causal),
    Probe("sliding window", "sliding_window(8)", _near),
    Probe("strided", "causal & strided(8)", _strided),
    Probe("global tokens", "sliding_window(8) | global_tokens(0, 40)", _near_or_global),
    Probe("key span", "causal & key_span(3, 60)", _causal_in_span),
    Probe("image windows", "image_windows((8, 9), 3, shift=1)", _in_image_window, 72, 72),
    Probe("one query", "causal", _causal, q_len=1, k_len=131),
    Probe("softcap", "causal", _causal, options=(("softcap", 2.0),)),
    Probe("dropout", "full", _full, options=DROPOUT),
    Probe("learned bias", "causal", _causal, learned_bias=True),
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
    findings = Findings(name, device)
    for probe in PROBES:
        _run_probe(findings, probe)
    return findings


@dataclass(frozen=True)
class _Prepared:
    """A probe's tensors on the CPU by the names of their gradients, the oracle's result, and the rounding budget."""

    tensors: dict[str, torch.Tensor]
    grad_output: torch.Tensor
    expected: Answer
    budget: Budget


@cache
def _prepared(probe: Probe) -> _Prepared:
    options = dict(probe.options)
    q, k, v = make_qkv(
        heads=4, kv_heads=2, q_len=probe.q_len, k_len=probe.k_len, head_dim=16, v_dim=16
    )
    batch, heads, q_len, head_dim = q.shape
    scale = head_dim**-0.5
    generator = torch.Generator().manual_seed(SEED)
    grad_output = torch.randn(batch, heads, q_len, v.shape[-1], generator=generator)
    tensors = {"dq": q, "dk": k, "dv": v}
    bias = None
    if probe.learned_bias:
        bias = torch.randn(1, heads, q_len, probe.k_len, generator=generator)
        tensors["dbias"] = bias

    q_pos = np.arange(q_len) + (probe.k_len - q_len)
    k_pos = np.arange(probe.k_len)
    allowed = probe.formula(q_pos[:, None], k_pos)
    dropout = options.get("dropout", 0.0)
    factors = kept_weights(dropout, SEED, batch, heads, q_pos, k_pos) / (1 - dropout)
    also_of_budget = {"scale": scale, "bias": bias, "grad_output": grad_output}
    expected = answer(
        q, k, v, allowed, softcap=options.get("softcap"), factors=factors, **also_of_budget
    )
    budget = Budget.of(q, k, v, torch.float32, dropout=dropout, answer=expected, **also_of_budget)
    return _Prepared(tensors, grad_output, expected, budget)


def _run_probe(findings: Findings, probe: Probe) -> None:
    """Run a probe with gradients if the backend computes them, else without, else record the refusal."""
    backend = BACKENDS[findings.backend]
    options = dict(probe.options)
    seed = options.pop("dropout_seed", None)
    for with_gradients in (True, False):
        tensors = {}
        for name, x in _prepared(probe).tensors.items():
            tensors[name] = x.to(findings.device, copy=True).requires_grad_(with_gradients)
        q, k, v = tensors["dq"], tensors["dk"], tensors["dv"]
        bias = tensors.get("dbias")
        problem = make_problem(q, k, v, pattern=probe.pattern, bias=bias, **options)
        verdict = backend.assess(problem)
        if isinstance(verdict, Refusal):
            findings.refused[probe.name] = verdict.reason
            continue

        findings.refused.pop(probe.name, None)
        try:
            # A kept plan may be older than the backend, so one is made here.
            plan = make_plan(problem, BACKENDS, findings.backend)
            results = {"output": plan.run(q, k, v, bias=bias, dropout_seed=seed)}
            if with_gradients:
                results |= _gradients(results["output"], tensors, _prepared(probe).grad_output)
                findings.gradients.append(probe.name)
            _compare(findings, probe, results)
        except Exception as error:
            findings.wrong[probe.name] = f"{type(error).__name__}: {error}"
        return


def _gradients(
    output: torch.Tensor, tensors: dict[str, torch.Tensor], grad_output: torch.Tensor
) -> dict[str, torch.Tensor]:
    gradients = torch.autograd.grad(output, list(tensors.values()), grad_output.to(output.device))
    return dict(zip(tensors, gradients, strict=True))


def _compare(findings: Findings, probe: Probe, results: dict[str, torch.Tensor]) -> None:
    prepared = _prepared(probe)
    errors = {}
    for name, x in results.items():
        errors[name] = prepared.budget.share(name, x, getattr(prepared.expected, name))
    worst = max(errors, key=lambda name: errors[name])
    findings.errors[probe.name] = errors[worst]
    if not errors[worst] <= 1:  # nor is NaN within the bound
        findings.wrong[probe.name] = (
            f"the error of {worst} is {errors[worst]:.3g} times the rounding bound"
        )
