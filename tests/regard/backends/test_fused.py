"""The fused backend: gathered keys, and row blocks that compute few masked pairs."""

import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.backends.composed import RowBlockCalls
from regard.core.call import make_problem
from regard.testing import make_qkv


def calls_of(pattern: str, length: int) -> RowBlockCalls:
    q = torch.empty(1, 1, 1, 64).expand(1, 8, length, 64)
    return RowBlockCalls.of(make_problem(q, q, q, pattern=pattern))


@pytest.mark.parametrize(
    "pattern",
    [
        "sliding_window(48) | global_tokens(0..15) | random_blocks(2, block=64, seed=3)",
        "causal & fixed(64, summary=2)",
        "causal_window(8) | diagonals(900, -896)",  # a far window that comes into sight
    ],
)
def test_keys_with_large_gaps_are_gathered_and_equal_the_reference_with_gradients(pattern):
    assert any(len(block.runs) > 1 for block in calls_of(pattern, 1000).blocks)
    leaves = make_qkv(
        q_len=1000, k_len=1000, heads=2, kv_heads=1, dtype=torch.float64, requires_grad=True
    )
    found = rg.attention(*leaves, pattern=pattern, backend="fused")
    expected = rg.attention(*leaves, pattern=pattern, backend="reference")
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    grad_output = torch.randn_like(expected)
    gradients = torch.autograd.grad(found, leaves, grad_output)
    expected_gradients = torch.autograd.grad(expected, leaves, grad_output)
    torch.testing.assert_close(gradients, expected_gradients, atol=1e-11, rtol=0)


@pytest.mark.parametrize(
    ("pattern", "length", "most"),
    [
        ("sliding_window(512)", 4096, 1.25),
        (
            "sliding_window(192) | global_tokens(0..127) | random_blocks(3, block=64, seed=0)",
            16_384,
            1.6,
        ),
        ("causal & fixed(64)", 4096, 3),
    ],
)
def test_few_masked_pairs_are_computed(pattern, length, most):
    calls = calls_of(pattern, length)
    kept = calls.problem.kept_pairs
    assert kept <= calls.cost.pairs <= most * kept


def test_strict_counts_the_pairs_of_patterns_that_differ_by_batch_row():
    q, k, v = make_qkv(q_len=500, k_len=500)
    pattern = p.Causal() & p.KeySpan(0, torch.tensor([400, 500]))
    found = rg.attention(q, k, v, pattern=pattern, backend="fused", strict=True)
    torch.testing.assert_close(found, rg.attention(q, k, v, pattern=pattern, backend="reference"))
    with pytest.raises(rg.UnsupportedError, match="more than twice as many"):
        rg.attention(q, k, v, pattern=p.CausalWindow(2) & pattern, backend="fused", strict=True)
