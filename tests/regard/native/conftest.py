"""Tests of the kernel are collected where its library is built; the others show what happens where it is not."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from regard.backends.native.library import load
from regard.core.call import Call
from regard.functional import api

from .calls import AVX2, BEST

# test_without_native.py runs everywhere
collect_ignore_glob = ["test_native_*.py"] if isinstance(load(), str) else []


@pytest.fixture
def native() -> Iterator[Any]:
    """The library; what a test chooses of it is undone."""
    library: Any = load()
    yield library
    library.handle.rg_use_instructions(BEST)


@pytest.fixture(params=[BEST, AVX2], ids=["best", "AVX2"])
def instructions(request: pytest.FixtureRequest, native: Any) -> int:
    """The instruction set that computes the test: the best of this processor, and AVX2."""
    native.handle.rg_use_instructions(request.param)
    return request.param


@pytest.fixture
def fresh_plans(fresh_plans: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """As everywhere, and the test may change the number of threads."""
    yield fresh_plans
    torch.set_num_threads(1)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """The calls of `attention` that are planned or checked."""
    calls: list[Call] = []
    compute = api._output_of_new

    def output_of_new(call: Call) -> torch.Tensor:
        calls.append(call)
        return compute(call)

    monkeypatch.setattr(api, "_output_of_new", output_of_new)
    return calls
