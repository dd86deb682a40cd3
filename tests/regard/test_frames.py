"""How many functions of regard a call passes: what is decided once must not be decided again by every call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import regard as rg
from regard.patterns import Causal, CausalWindow

ROOT = Path(rg.__file__).parent
CAUSAL, WINDOW = Causal(), CausalWindow(64)
SHORT, LONG = torch.randn(1, 4, 16, 64), torch.randn(1, 4, 256, 64)


def frames(call: Callable[[], Any]) -> list[str]:
    """The functions of regard that a call enters, once its plan is kept."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            entered.append(f"{path.relative_to(ROOT).as_posix()} {frame.f_code.co_name}")

    call()
    call()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.parametrize(("x", "pattern", "most"), [(SHORT, CAUSAL, 12), (LONG, WINDOW, 40)], ids=["causal", "window"])
def test_a_call_with_a_kept_plan_passes_few_functions(x, pattern, most):
    entered = frames(lambda: rg.attention(x, x, x, pattern=pattern))
    assert 1 < len(entered) <= most, entered


@pytest.mark.parametrize(("x", "pattern", "most"), [(SHORT, CAUSAL, 12), (LONG, WINDOW, 40)], ids=["causal", "window"])
def test_a_plan_that_has_seen_its_tensors_passes_few_functions(x, pattern, most):
    plan = rg.plan_attention(x, x, x, pattern=pattern)
    entered = frames(lambda: plan.run(x, x, x))
    assert 1 < len(entered) <= most, entered


def test_training_passes_one_function_more_than_inference():
    leaf = LONG.clone().requires_grad_()
    entered = frames(lambda: rg.attention(leaf, LONG, LONG, pattern=CAUSAL))
    assert 1 < len(entered) <= 13, entered  # one more is autograd's
