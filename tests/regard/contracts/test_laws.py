"""Metamorphic laws, for random sizes and pattern expressions: what must follow when a call is changed in a known way.

Every law holds bit by bit for every backend that computes the call. What follows from the formulas alone is compared
with them by the fuzzer, which also checks which calls a backend computes.
"""

import math

import pattern_strategies as patterns
import pytest
import torch
from asking import HERE, PLAIN, ask, computes, cut
from hypothesis import assume, given
from hypothesis import strategies as st
from law_examples import law

from regard import patterns as p
from regard.testing import make_qkv

backends = pytest.mark.parametrize("backend", HERE)
several = law(12)
kv_heads = st.sampled_from([patterns.HEADS, 1])
lengths = st.integers(1, 9)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    cut(monkeypatch)


def qkv(kv_heads: int, q_len: int, k_len: int) -> list[torch.Tensor]:
    sizes = {"batch": patterns.ROWS, "heads": patterns.HEADS, "kv_heads": kv_heads, "v_dim": 4}
    return list(make_qkv(**sizes, q_len=q_len, k_len=k_len, seed=k_len))


def attend(backend: str, q, k, v, **options) -> torch.Tensor:
    """The backend's output; a call that it refuses is no example of a law about it."""
    assume(computes(backend, q, k, v, **options))
    return ask(backend, q, k, v, **options).output


@backends
@several
@given(kv_heads, lengths, patterns.anything, st.data())
def test_an_edit_of_the_future_changes_no_bit_of_the_past(backend, kv_heads, length, pattern, data):
    now = data.draw(st.integers(0, length - 1))
    q, k, v = qkv(kv_heads, length, length)
    before = attend(backend, q, k, v, pattern=p.Causal() & pattern)
    for x in (q, k, v):
        x[:, :, now + 1 :] = torch.randn_like(x[:, :, now + 1 :]) * 50
    after = attend(backend, q, k, v, pattern=p.Causal() & pattern)
    assert torch.equal(after[:, :, : now + 1], before[:, :, : now + 1])


@backends
@several
@given(
    kv_heads, lengths, lengths, patterns.anything, st.sampled_from([math.nan, math.inf, -math.inf])
)
def test_a_key_that_no_query_sees_changes_no_bit(backend, kv_heads, q_len, k_len, pattern, filling):
    seen = pattern.dense(q_len, k_len).expand(patterns.ROWS, patterns.HEADS, q_len, k_len).any(2)
    hidden = ~seen.unflatten(1, (kv_heads, -1)).any(2)
    assume(hidden.any())

    def results(fill: float) -> list[torch.Tensor]:
        q, k, v = qkv(kv_heads, q_len, k_len)
        tensors = [
            q,
            k.masked_fill(hidden[..., None], fill),
            v.masked_fill(hidden[..., None], fill),
        ]
        leaves = [x.detach().requires_grad_() for x in tensors]
        if computes(backend, *leaves, pattern=pattern):  # it has gradients
            tensors = leaves
        output = attend(backend, *tensors, pattern=pattern)
        if not output.requires_grad:
            return [output]
        return [output, *torch.autograd.grad(output.sum(), leaves, materialize_grads=True)]

    assert all(map(torch.equal, results(0.0), results(filling)))


@pytest.mark.parametrize("backend", PLAIN)
def test_what_stands_beside_a_text_in_a_batch_changes_no_bit(backend):
    texts = make_qkv(batch=5, seed=1)
    other_texts = make_qkv(batch=5, seed=2)
    pattern = "causal & (causal_window(3) | global_tokens(0))"
    before = ask(backend, *texts, pattern=pattern).output
    for row in range(5):
        of_row = torch.arange(5)[:, None, None, None] == row
        joined = [torch.where(of_row, x, y) for x, y in zip(texts, other_texts, strict=True)]
        assert torch.equal(ask(backend, *joined, pattern=pattern).output[row], before[row])
