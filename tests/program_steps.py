"""Steps of a layer or a model by one program: which were computed by it, and how close they are to float64."""

from typing import Any

import pytest
import torch
from torch import Tensor


def note_computed(monkeypatch: pytest.MonkeyPatch, program: type, name: str) -> list[bool]:
    """For each step that a program is asked for from now on, whether it computes the step.

    `name` is that of the program's method which returns the numbers of a step, or None.
    """
    computed: list[bool] = []
    step = getattr(program, name)

    def noted_step(self: Any, *arguments: Any) -> Tensor | None:
        numbers = step(self, *arguments)
        computed.append(numbers is not None)
        return numbers

    monkeypatch.setattr(program, name, noted_step)
    return computed


def assert_close(found: Tensor, expected: Tensor) -> None:
    """That a step in float32 has the numbers of its float64 copy, which no program computes."""
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
