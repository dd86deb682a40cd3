"""Tests of what only newer versions of transformers have are skipped with those that pyproject.toml allows besides."""

from __future__ import annotations

import pytest
import transformers
from packaging.version import Version


def needs_t5() -> None:
    """Skip the test where T5 always computes its own attention."""
    if Version(transformers.__version__) < Version("5.20"):
        pytest.skip("T5 takes another attention from transformers 5.20 on")
