"""How many functions a call passes: what is decided once is not decided again by every call."""

from pathlib import Path

import pytest
import torch
from measuring import entered, frames

import regard as rg
from regard.backends import BACKENDS
from regard.backends.native.library import load
from regard.core.backend import Offer, Operands
from regard.core.call import make_problem
from regard.patterns import Causal, CausalWindow, Grid, Pattern, Strided

ROOT = Path(rg.__file__).parent
CAUSAL = Causal()
WINDOW = CausalWindow(64)
SHORT = torch.randn(1, 4, 16, 64)
LONG = torch.randn(1, 4, 256, 64)
HAS_KERNEL = not isinstance(load(), str)
# The most functions of a first call, without and with a gradient. Without the kernel, other backends are weighed.
MOST_ENTERED = (400, 620) if HAS_KERNEL else (900, 900)

KERNEL_CASES = [("native", Causal(), 64, 3), ("native", CausalWindow(256), 2048, 3)]
if not HAS_KERNEL:
    KERNEL_CASES = []

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
    kv_heads = 2 if name == "grouped" else heads
    for new_length in (length, length + 2, length + 1):
        q = torch.randn(batch, heads, new_length, dim, requires_grad=learns)
        k = v = torch.randn(batch, kv_heads, new_length, dim)
        count = len(entered(lambda q=q, k=k, v=v: rg.attention(q, k, v, **options)))
    return count


@pytest.mark.parametrize("name", COLD)
def test_a_call_with_a_new_problem_passes_few_functions(fresh_plans, name):
    most, most_learning = MOST_ENTERED
    assert 50 < first_call(name) <= most
    assert 50 < first_call(name, learns=True) <= most_learning


@pytest.mark.parametrize(
    ("x", "pattern", "most"), [(SHORT, CAUSAL, 12), (LONG, WINDOW, 40)], ids=["causal", "window"]
)
def test_a_call_with_a_kept_plan_passes_few_functions(x, pattern, most):
    passed = frames(lambda: rg.attention(x, x, x, pattern=pattern))
    assert 1 < len(passed) <= most, passed


def test_training_passes_one_function_more_than_inference():
    leaf = LONG.clone().requires_grad_()
    passed = frames(lambda: rg.attention(leaf, LONG, LONG, pattern=CAUSAL))
    assert 1 < len(passed) <= 13, passed  # one more is autograd's


@pytest.mark.parametrize(
    ("backend", "pattern", "length", "most"),
    [
        *KERNEL_CASES,
        ("fused", Causal(), 64, 6),
        ("tiled", Strided(64), 1024, 70),
    ],
)
def test_a_backend_with_a_kept_schedule_passes_few_functions(
    backend: str, pattern: Pattern, length: int, most: int
) -> None:
    q = torch.randn(1, 4, length, 64)
    problem = make_problem(q, q, q, pattern=pattern)
    offer = BACKENDS[backend].assess(problem)
    assert isinstance(offer, Offer)
    grid = Grid.whole(length, length)
    operands = Operands(q, q, q, None, grid.block(grid.rows, problem.reachable_keys), 0)
    passed = frames(lambda: offer.run(operands))
    assert 0 < len(passed) <= most, passed
