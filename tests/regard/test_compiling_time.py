"""How long a call is compiled does not depend on how many modules a program has imported."""

import sys
from cProfile import Profile
from types import ModuleType
from typing import Any

import pytest
import torch

import regard as rg
from regard import mechanisms as m
from regard import patterns as p

IMPORTED = 5_000  # modules, more than transformers imports
ROWS = torch.tensor([0, 3, 5])
CALLS: dict[str, dict[str, Any]] = {
    "a scale and a window": {"scale": 0.5, "pattern": "causal_window(4)"},
    "a mechanism with a number": {"mechanism": m.Lightning(0.5), "pattern": "causal"},
    "a sink of each head": {"sink": torch.tensor([0.5, 0.25])},
    "slopes": {"bias": rg.bias.ALiBi((0.5, 0.25)), "pattern": "causal"},
    "dropout": {"dropout": 0.5},
    "numbers in tensors": {"pattern": p.Causal() & p.KeySpan(ROWS), "q_start": ROWS},
}


def functions_called_to_compile(options: dict[str, Any]) -> int:
    """How many functions of Python are called while a call is compiled and runs once."""
    torch._dynamo.reset()
    x = torch.randn(3, 2, 7, 4)
    inside = torch.compile(
        lambda x: rg.attention(x, x, x, **options), fullgraph=True, backend="eager"
    )
    profile = Profile(builtins=False)
    profile.runcall(inside, x)
    return sum(function.callcount for function in profile.getstats())


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_a_call_is_compiled_in_as_many_steps_whatever_else_is_imported(options, monkeypatch):
    functions_called_to_compile(options)  # which imports parts of the compiler
    with_few = functions_called_to_compile(options)
    for number in range(IMPORTED):
        monkeypatch.setitem(sys.modules, f"imported_{number}", ModuleType(f"imported_{number}"))
    with_many = functions_called_to_compile(options)
    assert with_many - with_few < IMPORTED
