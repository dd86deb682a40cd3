"""Skips tests of features that the oldest supported versions of transformers do not have."""

from __future__ import annotations

import pytest
import transformers
from packaging.version import Version


def needs_t5() -> None:
    """Skip the test if the attention of T5 cannot be replaced in the installed version."""
    if Version(transformers.__version__) < Version("5.20"):
        pytest.skip("the attention of T5 can be replaced from transformers 5.20 on")
