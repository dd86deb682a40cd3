"""How many functions a call passes: what is decided once is not decided again by every call.

python -m tests.regard.test_frames                 prints the numbers of first calls
"""

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


def entered(call: Callable[[], Any]) -> list[Path]:
    """The files of the functions of Python that a call enters, in order."""
    files: list[Path] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            files.append(Path(frame.f_code.co_filename))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def frames(call: Callable[[], Any]) -> list[str]:
    """The files of regard whose functions a call enters, once its plan is kept."""
    call()
    call()
    return [path.relative_to(ROOT).as_posix() for path in entered(call) if path.is_relative_to(ROOT)]


COLD = {
    "causal": ((1, 4, 256, 64), {"pattern": CAUSAL}),
    "short": ((1, 4, 16, 64), {"pattern": CAUSAL}),
    "square": ((1, 4, 16, 64), {}),
    "window": ((1, 4, 256, 64), {"pattern": WINDOW}),
    "grouped": ((2, 8, 256, 64), {"pattern": "causal"}),
    "full": ((1, 4, 256, 64), {}),
}


def first_call(name: str, learns: bool = False) -> int:
    """How many functions of Python a call with a new problem enters, in a process that has made calls like it."""
    (batch, heads, length, dim), options = COLD[name]
    for at in (length, length + 2, length + 1):
        q = torch.randn(batch, heads, at, dim, requires_grad=learns)
        k = v = torch.randn(batch, 2 if name == "grouped" else heads, at, dim)
        count = len(entered(lambda q=q, k=k, v=v: rg.attention(q, k, v, **options)))
    return count


@pytest.mark.parametrize("name", COLD)
def test_a_call_with_a_new_problem_passes_few_functions(fresh_plans, name):
    assert 50 < first_call(name) <= 900
    assert 50 < first_call(name, learns=True) <= 900


@pytest.mark.parametrize(("x", "pattern", "most"), [(SHORT, CAUSAL, 12), (LONG, WINDOW, 40)], ids=["causal", "window"])
def test_a_call_with_a_kept_plan_passes_few_functions(x, pattern, most):
    passed = frames(lambda: rg.attention(x, x, x, pattern=pattern))
    assert 1 < len(passed) <= most, passed


@pytest.mark.parametrize(("x", "pattern", "most"), [(SHORT, CAUSAL, 12), (LONG, WINDOW, 40)], ids=["causal", "window"])
def test_a_plan_that_has_seen_its_tensors_passes_few_functions(x, pattern, most):
    plan = rg.plan_attention(x, x, x, pattern=pattern)
    passed = frames(lambda: plan.run(x, x, x))
    assert 1 < len(passed) <= most, passed


def test_training_passes_one_function_more_than_inference():
    leaf = LONG.clone().requires_grad_()
    passed = frames(lambda: rg.attention(leaf, LONG, LONG, pattern=CAUSAL))
    assert 1 < len(passed) <= 13, passed  # one more is autograd's


if __name__ == "__main__":
    for one in COLD:
        print(f"{one}: {first_call(one)}, with gradients {first_call(one, learns=True)}")
