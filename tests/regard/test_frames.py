"""How many functions a call passes: what is decided once is not decided again by every call."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from measuring import entered, frames

import regard as rg
from regard.backends import BACKENDS
from regard.backends.native.kept_calls import kept_calls
from regard.backends.native.library import load
from regard.core.backend import Offer, Operands
from regard.core.call import make_problem
from regard.functional.repeated import REPEATED
from regard.patterns import Causal, CausalWindow, KeyMask, Pattern, Strided
from regard.patterns.grid import Grid

ROOT = Path(rg.__file__).parent
CAUSAL = Causal()
WINDOW = CausalWindow(64)
STRIDED = Strided(64)
SHORT = torch.randn(1, 4, 16, 64)
LONG = torch.randn(1, 4, 256, 64)
HAS_KERNEL = not isinstance(load(), str)
MOST_WITHOUT_KERNEL = 900  # functions of a first call: other backends are weighed
MOST_STRIDED_WITHOUT_KERNEL = 4_500

KERNEL_CASES = [("native", Causal(), 64, 3), ("native", CausalWindow(256), 2048, 3)]
if not HAS_KERNEL:
    KERNEL_CASES = []


@dataclass(frozen=True)
class FirstCall:
    """A call with a new problem.

    most: functions of Python, those of torch and of dataclasses too, that it may enter with the kernel.
    most_learning: the same of a call whose queries need a gradient.
    """

    length: int
    pattern: Pattern | str | None
    most: int
    most_learning: int
    batch: int = 1
    heads: int = 4
    kv_heads: int = 4
    most_without_kernel: int = MOST_WITHOUT_KERNEL

    def entered(self, learns: bool) -> list[str]:
        """The files of the functions that it enters, in a process that has made calls like it."""
        files: list[str] = []
        for length in (self.length, self.length + 2, self.length + 1):
            q = torch.randn(self.batch, self.heads, length, 64, requires_grad=learns)
            k = v = torch.randn(self.batch, self.kv_heads, length, 64)
            files = entered(lambda q=q, k=k, v=v: rg.attention(q, k, v, pattern=self.pattern))
        return files


# More than is needed today by less than a tenth, since versions of Python and of torch differ.
FIRST_CALLS = {
    "causal": FirstCall(256, CAUSAL, 250, 275),
    "short": FirstCall(16, CAUSAL, 250, 526),
    "square": FirstCall(16, None, 280, 300),
    "window": FirstCall(256, WINDOW, 251, 276),
    "grouped": FirstCall(256, "causal", 310, 330, batch=2, heads=8, kv_heads=2),
    "full": FirstCall(256, None, 280, 300),
    "strided": FirstCall(
        1024, STRIDED, 2_800, 3_950, most_without_kernel=MOST_STRIDED_WITHOUT_KERNEL
    ),
}


@pytest.mark.parametrize("name", FIRST_CALLS)
def test_a_call_with_a_new_problem_passes_few_functions(fresh_plans, name):
    call = FIRST_CALLS[name]
    most = call.most if HAS_KERNEL else call.most_without_kernel
    most_learning = call.most_learning if HAS_KERNEL else call.most_without_kernel
    assert 50 < len(call.entered(learns=False)) <= most
    assert 50 < len(call.entered(learns=True)) <= most_learning


def test_a_call_with_a_new_strided_problem_passes_less_than_2000_functions_of_regard(fresh_plans):
    files = FIRST_CALLS["strided"].entered(learns=False)
    most = 2_000 if HAS_KERNEL else 2_300
    assert 500 < sum(Path(file).is_relative_to(ROOT) for file in files) < most


@pytest.mark.parametrize(
    ("x", "pattern", "most"), [(SHORT, CAUSAL, 10), (LONG, WINDOW, 40)], ids=["causal", "window"]
)
def test_a_call_with_a_kept_plan_passes_few_functions(x, pattern, most):
    passed = frames(lambda: rg.attention(x, x, x, pattern=pattern))
    assert 0 < len(passed) <= most, passed


@pytest.mark.skipif(kept_calls() is None, reason="only Python computes calls here")
def test_a_call_that_repeats_a_kept_one_passes_one_function(fresh_plans):
    passed = frames(lambda: rg.attention(SHORT, SHORT, SHORT, pattern=CAUSAL))
    assert len(passed) == 1, passed


def test_a_warm_call_passes_few_functions_where_only_python_computes(fresh_plans, monkeypatch):
    monkeypatch.setattr(REPEATED, "repeat", None)
    monkeypatch.setattr(REPEATED, "open", lambda: None)
    passed = frames(lambda: rg.attention(SHORT, SHORT, SHORT, pattern=CAUSAL))
    assert 1 < len(passed) <= 10, passed


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


@pytest.mark.skipif(kept_calls() is None, reason="only Python computes calls here")
@pytest.mark.parametrize(("learns", "most"), [(False, 12), (True, 25)], ids=["output", "learning"])
def test_a_call_with_a_new_mask_passes_few_functions(fresh_plans, learns, most):
    """Every batch of a training has its own mask, so what a mask takes is part of each call."""
    x = torch.randn(1, 4, 16, 64, requires_grad=learns)
    mask = torch.arange(16)[None] < 11
    passed = frames(lambda: rg.attention(x, SHORT, SHORT, pattern=KeyMask(mask)))
    assert 5 < len(passed) <= most, passed


def test_the_gradients_of_a_call_with_a_new_mask_pass_few_functions(fresh_plans):
    """A mask that is data is not read again for a second derivative that nobody asks for."""
    q, k, v = (torch.randn(1, 4, 16, 64, requires_grad=True) for _ in range(3))
    files: list[str] = []
    for length in (9, 11, 13):
        mask = torch.arange(16)[None] < length
        output = rg.attention(q, k, v, pattern=KeyMask(mask))
        files = entered(lambda output=output: output.sum().backward())
    assert 20 < len(files) <= (130 if HAS_KERNEL else MOST_WITHOUT_KERNEL)
