"""Memory: the fused backend never holds a tensor of q_len x k_len numbers, forward or backward."""

import pytest
import torch
from measuring import Largest

import regard as rg
from regard import patterns as p

LENGTH = 4096


def largest_of(pattern, backend: str, length: int = LENGTH, **options) -> int:
    q, k, v = (torch.randn(1, 1, length, 16, requires_grad=True) for _ in range(3))
    with Largest() as largest:
        rg.attention(q, k, v, pattern=pattern, backend=backend, **options).sum().backward()
    assert q.grad is not None
    return largest.held


@pytest.mark.parametrize(
    ("pattern", "limit"),
    [
        ("causal", LENGTH * 40),
        ("full", LENGTH * 40),
        ("causal_window(256)", LENGTH * 160),
        ("sliding_window(256)", LENGTH * 160),
        ("causal & key_span(3, 4000)", LENGTH * 300),
    ],
)
def test_no_dense_matrix_is_made(pattern, limit):
    assert largest_of(pattern, "fused") < limit < LENGTH * LENGTH


def test_padding_by_row_costs_a_block_of_rows_not_a_matrix():
    span = p.KeySpan(torch.tensor([5]), torch.tensor([4000]))
    assert largest_of(p.Causal() & span, "fused") <= 256 * LENGTH + LENGTH


SECOND = {
    "fused": {"pattern": "causal"},
    "tiled": {"pattern": "strided(64)"},
    "streamed": {"pattern": "causal", "softcap": 2.0},
    "linear": {"pattern": "causal", "mechanism": rg.mechanisms.LinearTransformer()},
}


@pytest.mark.parametrize("backend", SECOND)
def test_second_derivatives_make_no_dense_matrix(backend):
    q, k, v = (torch.randn(1, 1, LENGTH, 4, requires_grad=True) for _ in range(3))
    with Largest() as largest:
        output = rg.attention(q, k, v, backend=backend, **SECOND[backend])
        (first,) = torch.autograd.grad(output.square().sum(), q, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), k)
    assert second.isfinite().all()
    assert largest.held <= LENGTH * LENGTH / 8


def test_twice_the_length_takes_twice_the_memory():
    half = largest_of("causal_window(256)", "fused", LENGTH // 2)
    assert largest_of("causal_window(256)", "fused") <= 2.2 * half
