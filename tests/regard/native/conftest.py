"""Tests of the kernel are collected where its library is built; the others show what happens where it is not."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from regard.backends.native.library import load

# test_without_native.py runs everywhere
collect_ignore_glob = ["test_native_*.py"] if isinstance(load(), str) else []


@pytest.fixture
def native() -> Iterator[Any]:
    """The library; what a test chooses of it is undone."""
    found: Any = load()
    yield found
    found.handle.rg_use_instructions(0)


@pytest.fixture
def fresh_plans(fresh_plans: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """As everywhere, and the test may change the number of threads."""
    yield fresh_plans
    torch.set_num_threads(1)
