"""Sizes of 0 and 1 in every dimension give results or refusals, and never crash the process."""

import subprocess
import sys

import pytest
import torch

SCRIPT = """
import itertools, torch, warnings, regard as rg
from regard.backends import BACKENDS

torch.use_deterministic_algorithms(True)  # which poisons fresh memory
warnings.filterwarnings("ignore", category=rg.errors.EmptyRowsWarning)  # more queries than keys are meant
from regard.core.call import make_problem

one = torch.zeros(1, 1, 2, 1, requires_grad=True)
small = make_problem(one, one, one)
HERE = [name for name, backend in BACKENDS.items() if not any(limit(small) for limit in backend.limits)]

names = ("batch", "kv_heads", "group", "q_len", "k_len", "head_dim", "v_dim")
done = refused = 0
for sizes in itertools.product((0, 1, 3), repeat=7):
    if sum(size == 0 for size in sizes) > 1 or sum(min(size, 2) for size in sizes) % 5:
        continue
    b, g, r, i, j, d, e = sizes
    for number, backend in enumerate(("auto", *HERE[sum(sizes) // 2 % 2 :: 2]), start=sum(sizes)):
        pattern = (None, "causal_window(2)")[number % 2]
        q = torch.randn(b, g * r, i, d, requires_grad=True)
        k, v = torch.randn(b, g, j, d, requires_grad=True), torch.randn(b, g, j, e, requires_grad=True)
        try:
            want = ["log_sum_exp", "entropy", "received", "weights", rg.top_keys(2)]
            detail = rg.attention_detail(q, k, v, pattern=pattern, backend=backend, want=want)
        except rg.RegardError as refusal:
            words = str(refusal)
            known = ("head_dim is 0", "multiple of kv_heads", "nothing to compute")
            assert (0 in sizes and any(word in words for word in known)), (sizes, backend, words)
            assert backend not in ("auto", "reference") or "nothing to" not in words, (sizes, backend, words)
            refused += 1
            continue
        assert detail.output.shape == (b, g * r, i, e) and detail.output.isfinite().all(), sizes
        assert detail.weights.shape == (b, g * r, i, j) and detail.received.shape == (b, g * r, j)
        assert detail.top_keys.indices.shape == (b, g * r, i, 2)
        if j == 0:
            assert (detail.output == 0).all() and (detail.log_sum_exp == -torch.inf).all()
        detail.output.sum().backward()
        assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v)), sizes
        done += 1
print(done, refused)
"""


def test_zero_and_one_in_every_dimension_answer_or_refuse():
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    done, refused = map(int, run.stdout.split())
    assert done > 150
    assert refused > 40


# Memory that nobody has written


TAKEN = {
    "empty": lambda like: torch.empty(3, dtype=like.dtype),
    "empty_like": torch.empty_like,
    "new_empty": lambda like: like.new_empty(3),
    "empty_strided": lambda like: torch.empty_strided((3,), (1,), dtype=like.dtype),
    "resize_": lambda like: torch.zeros(0, dtype=like.dtype).resize_(3),
}


@pytest.mark.parametrize("name", TAKEN)
def test_fresh_memory_is_poisoned(name):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        assert TAKEN[name](torch.zeros(3, dtype=dtype)).isnan().all()
    assert (TAKEN[name](torch.zeros(3, dtype=torch.int64)) == torch.iinfo(torch.int64).max).all()
