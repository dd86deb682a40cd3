"""Blocks of a few rows and keys, so that small calls reach the code that otherwise only large calls reach."""

from __future__ import annotations

import pytest
from fuzz.judging import SMALL


def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut everything into small blocks."""
    for module, name, size in SMALL:
        assert hasattr(module, name), f"{module.__name__} has no {name} any more"
        monkeypatch.setattr(module, name, size)
