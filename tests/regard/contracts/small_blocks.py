"""Blocks of a few rows and keys, so that small calls reach the code that otherwise only large calls reach."""

from __future__ import annotations

import pytest

from regard.backends import dropout, fused
from regard.backends.decode import fold, weigh
from regard.backends.scores import blocking
from regard.backends.tiled import backend, execution, grouping


def any_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tiled backend compute every batch row separately, even with few pairs."""
    monkeypatch.setattr(backend, "ROW_PATTERNS", 0)


def cut(monkeypatch: pytest.MonkeyPatch, nested: bool = False) -> None:
    """Cut everything into small blocks; `nested`: and residues of a stride into programs of their own."""
    any_rows(monkeypatch)
    smaller = {
        backend: {"FORWARD_ROWS": {2: 1.0}, "BACKWARD_ROWS": {3: 1.0}},
        execution: {"COPIED": 64},
        grouping: {"APART_ROWS": 2} | ({"RESIDUE_PAIRS": 0} if nested else {}),
        blocking: {"ROWS": 6, "PAIRS": 96, "ALIGNED": 4},
        fused: {"ROWS": 3, "MASK_LIMIT": 64},
        dropout: {"_CHUNK": 24},
        weigh: {"WORKSPACE": 16, "FEWEST": 3},
        fold: {"SPLIT": 2, "ROWS": 1},
    }
    for module, sizes in smaller.items():
        for name, size in sizes.items():
            assert hasattr(module, name), f"{module.__name__} has no {name} any more"
            monkeypatch.setattr(module, name, size)
