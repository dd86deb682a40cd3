"""Checks an installation: every backend computes small problems, and the oracle checks values and gradients."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from regard.backends import BACKENDS
from regard.core.backend import Refusal
from regard.core.call import make_problem
from regard.core.plan import make_plan
from regard.mechanisms import LSH, Additive, LinearTransformer, Linformer, Mechanism, Performer, RandomFeature, Softmax
from regard.patterns import Causal, Full, Pattern
from regard.reprs import brief
from regard.testing import Answer, Budget, answer, kept_weights, make_qkv
from regard_lab.bench.judging import judge
from regard_lab.bench.results import PACKAGES, environment, package_version
from regard_lab.bench.work import Contender, Contest, Tensors, Work, make_tensors

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
    """Check a backend on small problems of every mechanism except softmax with a dot product.

    Problems that the backend refuses are skipped, since each backend computes only some mechanisms.

    Returns:
        Errors relative to their bound, and descriptions of wrong results, by the name of the problem.
    """
    errors: dict[str, float] = {}
    wrong: dict[str, str] = {}
    for name, on_cpu in WORKS.items():
        work = replace(on_cpu, device=device)
        problem = make_problem(*_tensors(make_tensors(work)), **_options(work, make_tensors(work)))
        if isinstance(BACKENDS[backend].assess(problem.projected), Refusal):
            continue
        contender = Contender(backend, lambda work, tensors: lambda: _attend(backend, work, tensors))
        try:
            verdict = judge(Contest(name, work, (contender,)), contender)
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"
            continue
        errors[name] = max(verdict.errors.values())
        if not verdict.right:
            wrong[name] = f"errors relative to the rounding bound: {verdict}"
    return errors, wrong


def _attend(backend: str, work: Work, tensors: Tensors) -> torch.Tensor:
    options = _options(work, tensors)
    plan = make_plan(make_problem(*_tensors(tensors), **options), {backend: BACKENDS[backend]}, backend)
    return plan.run(*_tensors(tensors), parameters=options["parameters"])


def _tensors(tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tensors.q, tensors.k, tensors.v


def _options(work: Work, tensors: Tensors) -> dict[str, Any]:
    return {"pattern": work.pattern, "mechanism": work.mechanism, "parameters": tensors.parameters or None}


SEED = 5


@dataclass(frozen=True)
class Probe:
    """A small problem: pattern text, its formula on positions i and j, lengths, and the options of the call."""

    name: str
    pattern: str
    formula: Callable[[Any, Any], Any]
    q_len: int = 67
    k_len: int = 67
    options: dict[str, Any] = field(default_factory=dict)
    learned_bias: bool = False


PROBES = (
    Probe("full", "full", lambda i, j: i + j >= 0),
    Probe("causal", "causal", lambda i, j: j <= i),
    Probe("sliding window", "sliding_window(8)", lambda i, j: abs(i - j) <= 4),
    Probe("strided", "causal & strided(8)", lambda i, j: (j <= i) & ((i - j < 8) | ((i - j) % 8 == 0))),
    Probe(
        "global tokens",
        "sliding_window(8) | global_tokens(0, 40)",
        lambda i, j: (abs(i - j) <= 4) | (i == 0) | (j == 0) | (i == 40) | (j == 40),
    ),
    Probe("key span", "causal & key_span(3, 60)", lambda i, j: (j <= i) & (j >= 3) & (j < 60)),
    Probe("one query", "causal", lambda i, j: j <= i, q_len=1, k_len=131),
    Probe("softcap", "causal", lambda i, j: j <= i, options={"softcap": 2.0}),
    Probe("dropout", "full", lambda i, j: i + j >= 0, options={"dropout": 0.3, "dropout_seed": SEED}),
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


@brief
@dataclass(frozen=True)
class Health:
    """The environment, the results of all backends, and the optional packages.

    packages: the version of each, None for a missing one; compiler: whether there is a C++ compiler, which
    FlexAttention needs on the CPU.
    """

    environment: dict[str, Any]
    findings: tuple[Findings, ...]
    packages: dict[str, str | None]
    compiler: bool

    @property
    def sound(self) -> bool:
        """Whether no backend gave a wrong result."""
        return all(result.status != "wrong" for result in self.findings)

    def to_json(self) -> str:
        """The result as JSON text."""
        backends = [{"status": result.status, **vars(result)} for result in self.findings]
        packages = {
            name: {"version": result, "extra": PACKAGES[name][0], "for": PACKAGES[name][1]}
            for name, result in self.packages.items()
        }
        return json.dumps(
            {
                "environment": self.environment,
                "sound": self.sound,
                "backends": backends,
                "packages": packages,
                "compiler": self.compiler,
            }
        )


def examine() -> Health:
    """Check every backend on every available device with small problems.

    >>> examine().sound
    True
    """
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    oracles = [(probe, _Question.of(probe)) for probe in PROBES]
    findings = []
    for device in devices:
        for name in BACKENDS:
            result = Findings(name, device)
            for probe, question in oracles:
                _try(result, probe, question)
            errors, wrong = try_mechanisms(name, device)
            result.errors |= errors
            result.wrong |= wrong
            result.gradients += errors
            if errors and not result.errors.keys() - errors.keys():
                result.refused.clear()  # the backend is for other mechanisms, so refusals of softmax are expected
            findings.append(result)
    packages = {name: package_version(name) for name in PACKAGES}
    compiler = any(shutil.which(name) for name in ("g++", "clang++", "c++"))
    return Health(environment(), tuple(findings), packages, compiler)


@dataclass(frozen=True)
class _Question:
    """A probe's tensors on the CPU, the result of the oracle, and the rounding budget."""

    tensors: dict[str, torch.Tensor]
    grad: torch.Tensor
    expected: Answer
    budget: Budget

    @classmethod
    def of(cls, probe: Probe) -> _Question:
        q, k, v = make_qkv(heads=4, kv_heads=2, q_len=probe.q_len, k_len=probe.k_len, head_dim=16, v_dim=16)
        generator = torch.Generator().manual_seed(SEED)
        grad = torch.randn(*q.shape[:3], v.shape[-1], generator=generator)
        bias = torch.randn(1, q.shape[1], probe.q_len, probe.k_len, generator=generator) if probe.learned_bias else None
        i, j = np.arange(probe.q_len)[:, None] + (probe.k_len - probe.q_len), np.arange(probe.k_len)
        dropout, factors = probe.options.get("dropout", 0.0), None
        if dropout:
            factors = kept_weights(dropout, SEED, q.shape[0], q.shape[1], i[:, 0], j) / (1 - dropout)
        scale = q.shape[-1] ** -0.5
        expected = answer(
            q, k, v, probe.formula(i, j), scale=scale, softcap=probe.options.get("softcap"), bias=bias,
            factors=factors, grad_output=grad,
        )  # fmt: skip
        budget = Budget.of(
            q, k, v, torch.float32, scale=scale, bias=bias, grad_output=grad, dropout=dropout, answer=expected
        )
        tensors = {"dq": q, "dk": k, "dv": v} | ({} if bias is None else {"dbias": bias})
        return cls(tensors, grad, expected, budget)


def _try(result: Findings, probe: Probe, question: _Question) -> None:
    """Run a probe with gradients if the backend computes them, else without, else record the refusal."""
    for gradients in (True, False):
        tensors = {
            name: x.to(result.device, copy=True).requires_grad_(gradients) for name, x in question.tensors.items()
        }
        q, k, v, bias = (tensors.get(name) for name in ("dq", "dk", "dv", "dbias"))
        assert q is not None
        assert k is not None
        assert v is not None
        given: dict[str, Any] = {"pattern": probe.pattern, "bias": bias, **probe.options}
        seed = given.pop("dropout_seed", None)
        problem = make_problem(q, k, v, **given)
        verdict = BACKENDS[result.backend].assess(problem)
        if isinstance(verdict, Refusal):
            result.refused[probe.name] = verdict.reason
            continue
        result.refused.pop(probe.name, None)
        try:
            plan = make_plan(
                problem, BACKENDS, result.backend
            )  # not a cached plan, which may be older than the backend
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
        gradients = torch.autograd.grad(answers["output"], list(leaves.values()), question.grad.to(result.device))
        answers |= dict(zip(leaves, gradients, strict=True))
        result.gradients.append(probe.name)
    errors = {name: question.budget.share(name, x, getattr(question.expected, name)) for name, x in answers.items()}
    worst = max(errors, key=lambda name: errors[name])
    result.errors[probe.name] = errors[worst]
    if not errors[worst] <= 1:
        result.wrong[probe.name] = f"the error of {worst} is {errors[worst]:.3g} times the rounding bound"
