"""Checks an installation: every backend computes small problems, and the oracle checks values and gradients."""

import json
import shutil
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from regard.backends import BACKENDS
from regard.core.backend import Refusal
from regard.core.call import make_problem
from regard.core.plan import make_plan
from regard.mechanisms import (
    LSH,
    Additive,
    LinearTransformer,
    Linformer,
    Mechanism,
    Performer,
    RandomFeature,
    Softmax,
)
from regard.patterns import Causal, Full, Pattern
from regard.reprs import brief
from regard.testing.health import Findings, check_backend
from regard_lab.bench.judging import judge
from regard_lab.bench.results import PACKAGES, environment, package_version
from regard_lab.bench.work import Attend, Contender, Contest, Tensors, Work, make_tensors

LENGTH = 67


def _work(mechanism: Mechanism, pattern: Pattern) -> Work:
    kv_heads = 4 if mechanism.shares_keys else 2
    return Work(
        LENGTH,
        heads=4,
        kv_heads=kv_heads,
        head_dim=16,
        pattern=pattern,
        mechanism=mechanism,
        backward=True,
    )


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
    contender = Contender(backend, partial(_attending, backend))
    for name, work_on_cpu in WORKS.items():
        work = replace(work_on_cpu, device=device)
        tensors = make_tensors(work)
        problem = make_problem(tensors.q, tensors.k, tensors.v, **_options(work, tensors))
        if isinstance(BACKENDS[backend].assess(problem.projected), Refusal):
            continue
        try:
            verdict = judge(Contest(name, work, (contender,)), contender)
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"
            continue
        errors[name] = max(verdict.errors.values())
        if not verdict.right:
            wrong[name] = f"errors relative to the rounding bound: {verdict}"
    return errors, wrong


def _attending(backend: str, work: Work, tensors: Tensors) -> Attend:
    """A call of this backend alone."""

    def attend() -> torch.Tensor:
        options = _options(work, tensors)
        problem = make_problem(tensors.q, tensors.k, tensors.v, **options)
        plan = make_plan(problem, {backend: BACKENDS[backend]}, backend)
        return plan.run(tensors.q, tensors.k, tensors.v, parameters=options["parameters"])

    return attend


def _options(work: Work, tensors: Tensors) -> dict[str, Any]:
    return {
        "pattern": work.pattern,
        "mechanism": work.mechanism,
        "parameters": tensors.parameters or None,
    }


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
        packages = {}
        for name, version in self.packages.items():
            extra, purpose = PACKAGES[name]
            packages[name] = {"version": version, "extra": extra, "for": purpose}
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
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices.append("cuda")
    if torch.backends.mps.is_available():  # the GPU of a Mac
        devices.append("mps")
    findings = []
    for device in devices:
        for name in BACKENDS:
            result = check_backend(name, device)
            errors, wrong = try_mechanisms(name, device)
            result.errors |= errors
            result.wrong |= wrong
            result.gradients += errors
            if errors and not result.errors.keys() - errors.keys():
                # the backend is for other mechanisms, so its refusals of softmax are expected
                result.refused.clear()
            findings.append(result)
    packages = {name: package_version(name) for name in PACKAGES}
    compiler = any(shutil.which(name) for name in ("g++", "clang++", "c++"))
    return Health(environment(), tuple(findings), packages, compiler)
