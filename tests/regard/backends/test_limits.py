"""A half-built backend is named: every class that computes calls is listed, with limits that give reasons."""

import importlib
import inspect
import pkgutil

import pytest

from regard import backends
from regard.backends import BACKENDS
from regard.backends.limits import Limited, refusal_by, where
from regard.core.backend import Refusal
from regard.core.call import make_problem
from regard.testing import make_qkv


def test_every_class_that_computes_calls_is_listed():
    found = set()
    for module in pkgutil.walk_packages(backends.__path__, f"{backends.__name__}."):
        if not module.name.endswith("libregard_native"):
            classes = inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
            found |= {
                kind
                for _, kind in classes
                if hasattr(kind, "assess") and kind.__module__ == module.name
            }
    unlisted = found - {Limited, *map(type, BACKENDS.values())}
    assert not unlisted, f"add {unlisted} to BACKENDS in regard/backends/__init__.py"


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_has_a_name_and_limits_that_give_reasons(name):
    backend = BACKENDS[name]
    assert backend.name == name
    problems = [
        make_problem(*make_qkv(), mechanism=one, pattern="causal") for one in (None, "linear")
    ]
    reasons = [limit(problem) for limit in backend.limits for problem in problems]
    assert all(one is None or isinstance(one, str) for one in reasons)


def test_the_first_limit_that_is_exceeded_gives_the_reason_with_its_numbers():
    problem = make_problem(*make_qkv(), pattern="causal")
    limits = (
        where(lambda one: False, "never"),
        where(lambda one: True, "{problem.q_len} queries of {pattern}"),
    )
    assert refusal_by(limits, problem) == Refusal("7 queries of causal")
    assert refusal_by(limits[:1], problem) is None
