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


def modules_of_backends():
    for module in pkgutil.walk_packages(backends.__path__, f"{backends.__name__}."):
        if not module.name.endswith("libregard_native"):
            yield importlib.import_module(module.name)


def test_every_class_that_computes_calls_is_listed():
    computing = set()
    for module in modules_of_backends():
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if hasattr(kind, "assess") and kind.__module__ == module.__name__:
                computing.add(kind)
    unlisted = computing - {Limited, *map(type, BACKENDS.values())}
    assert not unlisted, f"add {unlisted} to BACKENDS in regard/backends/__init__.py"


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_has_a_name_and_limits_that_give_reasons(name):
    backend = BACKENDS[name]
    assert backend.name == name
    for mechanism in (None, "linear"):
        problem = make_problem(*make_qkv(), mechanism=mechanism, pattern="causal")
        for limit in backend.limits:
            reason = limit(problem)
            assert reason is None or isinstance(reason, str)


def test_the_first_limit_that_is_exceeded_gives_the_reason_with_its_numbers():
    problem = make_problem(*make_qkv(), pattern="causal")
    never = where(lambda problem: False, "never")
    always = where(lambda problem: True, "{problem.q_len} queries of {pattern}")
    assert refusal_by((never, always), problem) == Refusal("7 queries of causal")
    assert refusal_by((never,), problem) is None
