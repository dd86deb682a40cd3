"""Tests of the kernel are collected where its library is built; the others show what happens where it is not."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from regard.backends.native.library import load
from regard.functional import kept

collect_ignore_glob = ["test_native_*.py"] if isinstance(load(), str) else []  # test_without_native.py runs everywhere


@pytest.fixture
def native() -> Iterator[Any]:
    """The library; what a test chooses of it is undone."""
    found: Any = load()
    yield found
    found.handle.rg_use_instructions(0)


@pytest.fixture
def fresh_plans() -> Iterator[None]:
    """The test uses no plan of an earlier one, and leaves none behind."""
    stores = kept._plans, kept._steps, kept._calls, kept._own
    for store in stores:
        store.clear()
    yield
    for store in stores:
        store.clear()
    torch.set_num_threads(1)
