"""Metamorphic laws, for random sizes and patterns: what must follow when a call is changed in a known way."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard as rg
from regard import patterns as p
from regard.testing import make_qkv

EXACT = {"rtol": 1e-11, "atol": 1e-12}
several = settings(max_examples=60)
backends = pytest.mark.parametrize("backend", ["fused", "reference"])
groups = st.sampled_from([(4, 4), (4, 2), (4, 1)])
lengths = st.integers(1, 40)
causal_patterns = st.sampled_from(
    ["causal", "causal & causal_window(3)", "causal & (causal_window(2) | key_span(0, 3))", "causal & ~key_span(2, 5)"]
)
any_patterns = st.sampled_from([
    "full", "causal", "sliding_window(4)", "causal_window(5)", "key_span(1, 9)", "~causal",
    "~sliding_window(2) | causal",
])  # fmt: skip


def qkv(heads, q_len, k_len, seed, **more):
    return make_qkv(heads=heads[0], kv_heads=heads[1], q_len=q_len, k_len=k_len, v_dim=4, seed=seed, **more)


@backends
@several
@given(groups, lengths, causal_patterns, st.data())
def test_an_edit_of_the_future_changes_no_bit_of_the_past(backend, heads, length, pattern, data):
    now = data.draw(st.integers(0, length - 1))
    q, k, v = qkv(heads, length, length, seed=length)
    before = rg.attention(q, k, v, pattern=pattern, backend=backend)
    for x in (q, k, v):
        x[:, :, now + 1 :] = torch.randn_like(x[:, :, now + 1 :]) * 50
    after = rg.attention(q, k, v, pattern=pattern, backend=backend)
    assert torch.equal(after[:, :, : now + 1], before[:, :, : now + 1])


@pytest.mark.parametrize("options", [
    {}, {"softcap": 2.0}, {"dropout": 0.3, "dropout_seed": 1}, {"bias": torch.ones(8)}, {"scale": 2.0},
    {"softcap": 2.0, "dropout": 0.3, "dropout_seed": 1, "bias": torch.ones(4, 1, 8)},
])  # fmt: skip
@pytest.mark.parametrize("detail", [False, True])
def test_no_option_lets_the_future_leak(options, detail):
    q, k, v = (x.requires_grad_() for x in qkv((4, 2), 8, 8, seed=1))
    if detail:
        output = rg.attention_detail(q, k, v, pattern="causal", want=["weights", "entropy"], **options).output
    else:
        output = rg.attention(q, k, v, pattern="causal", **options)
    gradients = torch.autograd.grad(output[:, :, :5].sum(), (k, v))
    assert all((gradient[:, :, 5:] == 0).all() for gradient in gradients)


@backends
@several
@given(groups, lengths, lengths)
def test_a_window_as_wide_as_everything_is_no_window(backend, heads, q_len, k_len):
    q, k, v = qkv(heads, q_len, k_len, seed=0, dtype=torch.float64)
    wide = 2 * (q_len + k_len)
    for window, plain in ((f"causal_window({wide})", "causal"), (f"sliding_window({wide})", "full")):
        one, other = (rg.attention(q, k, v, pattern=pattern, backend=backend) for pattern in (window, plain))
        torch.testing.assert_close(one, other, **EXACT)


@backends
@several
@given(groups, lengths, lengths, any_patterns)
def test_grouped_heads_equal_repeated_heads(backend, heads, q_len, k_len, pattern):
    q, k, v = qkv(heads, q_len, k_len, seed=1, dtype=torch.float64)
    group = heads[0] // heads[1]
    repeated = [x.repeat_interleave(group, 1) for x in (k, v)]
    one = rg.attention(q, k, v, pattern=pattern, backend=backend)
    torch.testing.assert_close(rg.attention(q, *repeated, pattern=pattern, backend=backend), one, **EXACT)


@backends
@several
@given(groups, lengths, lengths, st.randoms(use_true_random=False))
def test_the_order_of_keys_means_nothing_without_a_pattern(backend, heads, q_len, k_len, random):
    q, k, v = qkv(heads, q_len, k_len, seed=2, dtype=torch.float64)
    order = random.sample(range(k_len), k_len)
    shuffled = rg.attention(q, k[:, :, order], v[:, :, order], backend=backend)
    torch.testing.assert_close(shuffled, rg.attention(q, k, v, backend=backend), **EXACT)


@backends
@several
@given(groups, lengths, st.lists(st.booleans(), min_size=1, max_size=40))
def test_masked_keys_equal_removed_keys(backend, heads, q_len, live):
    q, k, v = qkv(heads, q_len, len(live), seed=3, dtype=torch.float64)
    kept = torch.tensor(live)
    masked = rg.attention(q, k, v, pattern=p.Explicit(kept.expand(q_len, -1)), backend=backend)
    removed = rg.attention(q, k[:, :, kept], v[:, :, kept], backend="reference")
    torch.testing.assert_close(masked, removed, **EXACT)


@backends
@several
@given(groups, lengths, lengths, any_patterns)
def test_values_enter_linearly_and_a_shift_of_all_keys_means_nothing(backend, heads, q_len, k_len, pattern):
    q, k, v = qkv(heads, q_len, k_len, seed=4, dtype=torch.float64)

    def call(k, v):
        return rg.attention(q, k, v, pattern=pattern, backend=backend)

    torch.testing.assert_close(call(k, 3 * v + k[..., :4]), 3 * call(k, v) + call(k, k[..., :4]), **EXACT)
    shifted = call(k + torch.randn(5, dtype=torch.float64), v)
    torch.testing.assert_close(shifted, call(k, v), **EXACT)


@backends
@several
@given(groups, lengths, lengths, any_patterns, st.integers(-5, 5))
def test_batch_rows_and_heads_do_not_meet(backend, heads, q_len, k_len, pattern, shift):
    q, k, v = qkv(heads, q_len, k_len, seed=5, dtype=torch.float64)
    starts = torch.tensor([shift, 2])
    together = rg.attention(q, k, v, pattern=pattern, q_start=starts, backend=backend)
    for row in range(2):
        alone = rg.attention(
            q[row, None], k[row, None], v[row, None], pattern=pattern, q_start=int(starts[row]), backend=backend
        )  # fmt: skip
        torch.testing.assert_close(together[row : row + 1], alone, **EXACT)


@backends
def test_one_text_in_a_batch_is_the_same_bit_for_bit_as_alone(backend):
    q, k, v = make_qkv(batch=5)
    together = rg.attention(q, k, v, pattern="causal", backend=backend)
    for row in range(5):
        alone = rg.attention(*(x[row : row + 1] for x in (q, k, v)), pattern="causal", backend=backend)
        assert torch.equal(together[row], alone[0])


@pytest.mark.parametrize("pattern", [None, "causal", "causal_window(2)", p.Explicit(torch.eye(3, 4) == 0)])
@pytest.mark.parametrize("heads", [(2, 2), (2, 1)])
@backends
def test_gradients_pass_gradcheck(backend, heads, pattern):
    q, k, v = make_qkv(
        batch=1, heads=heads[0], kv_heads=heads[1], q_len=3, k_len=4, head_dim=2, v_dim=3, dtype=torch.float64,
        requires_grad=True,
    )  # fmt: skip
    assert torch.autograd.gradcheck(lambda *x: rg.attention(*x, pattern=pattern, backend=backend), (q, k, v))
