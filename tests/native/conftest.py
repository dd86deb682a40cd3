"""Tests of the kernel are collected where its library is built; the others show what happens where it is not."""

from collections.abc import Iterator
from typing import Any

import pytest

from regard.backends.native.library import load

collect_ignore_glob = ["test_native_*.py"] if isinstance(load(), str) else []  # test_without_native.py runs everywhere


@pytest.fixture
def native() -> Iterator[Any]:
    """The library; what a test chooses of it is undone."""
    found: Any = load()
    yield found
    found.handle.rg_use_instructions(0)
