"""What attention tells about itself equals the oracle's weights, and can be trained on."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from cells import PATTERNS, Places

import regard as rg
from regard.testing import Budget, answer, make_qkv

BACKENDS = ("fused", "reference")
WANT = ("log_sum_exp", "entropy", "received", "weights", rg.top_keys(4))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PATTERNS)
def test_statistics_equal_the_oracle(name, backend):
    build, formula = PATTERNS[name]
    for (q_len, k_len), (heads, kv_heads), bias in itertools.product(
        ((7, 11), (11, 7), (300, 40)), ((6, 3), (2, 2)), (None, "by head")
    ):
        at = Places.of(2, heads, q_len, k_len)
        q, k, v = make_qkv(q_len=q_len, k_len=k_len, heads=heads, kv_heads=kv_heads, dtype=torch.float64)
        added = None if bias is None else torch.randn(heads, 1, k_len, dtype=torch.float64)
        if q_len == 300 and (bias or heads == 6):
            continue
        detail = rg.attention_detail(q, k, v, pattern=build(at), bias=added, backend=backend, want=WANT)
        expected = answer(*(x.numpy() for x in (q, k, v)), formula(at), scale=5**-0.5,
                          bias=None if added is None else added[None].numpy())  # fmt: skip
        budget = Budget.of(q, k, v, torch.float64, scale=5**-0.5, bias=added)
        assert budget.share("output", detail.output, expected.output) <= 1
        assert budget.share("log_sum_exp", detail.log_sum_exp, expected.log_sum_exp) <= 1
        w = expected.weights
        np.testing.assert_allclose(detail.weights.numpy(), w, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(detail.received.numpy(), w.sum(2), rtol=1e-11, atol=1e-12)
        entropy = -np.where(w > 0, w * np.log(np.where(w > 0, w, 1)), 0).sum(-1)
        np.testing.assert_allclose(detail.entropy.numpy(), entropy, rtol=1e-10, atol=1e-12)
        ranked = -np.sort(-w, axis=-1)[..., :4]
        np.testing.assert_allclose(detail.top_keys.weights.numpy(), ranked, rtol=1e-11, atol=1e-13)
        indices = detail.top_keys.indices.numpy()
        looked_up = np.take_along_axis(w, np.maximum(indices, 0), -1)
        np.testing.assert_allclose(np.where(indices < 0, 0, looked_up), ranked, rtol=1e-11, atol=1e-13)
        assert ((indices >= 0).sum(-1) == np.minimum(4, (w > 0).sum(-1))).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pattern", ["full", "causal", "causal_window(3)", "key_span(2, 6)"])
def test_every_statistic_sends_its_gradient(pattern, backend):
    q, k, v = make_qkv(batch=1, heads=2, kv_heads=1, q_len=4, k_len=6, head_dim=3, v_dim=2, dtype=torch.float64)

    def told(q, k):
        detail = rg.attention_detail(q, k, v, pattern=pattern, backend=backend, want=WANT)
        return detail.log_sum_exp, detail.entropy, detail.received.sin(), detail.weights.sin(), detail.top_keys.weights

    assert torch.autograd.gradcheck(told, (q.requires_grad_(), k.requires_grad_()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_asking_changes_no_bit_of_the_output(backend):
    q, k, v = make_qkv(q_len=300, k_len=290)
    for pattern in (None, "causal", "causal_window(20)"):
        plain = rg.attention(q, k, v, pattern=pattern, backend=backend)
        assert torch.equal(rg.attention_detail(q, k, v, pattern=pattern, backend=backend, want=WANT).output, plain)


def test_top_keys_are_padded_with_no_key_and_no_weight():
    x = torch.zeros(1, 1, 2, 4)
    top = rg.attention_detail(x, x, x, pattern="causal", want=rg.top_keys(5)).top_keys
    assert top.indices.shape == top.weights.shape == (1, 1, 2, 5)
    assert top.indices[0, 0, 0].tolist() == [0, -1, -1, -1, -1]
    assert top.weights[0, 0, 1].tolist() == [0.5, 0.5, 0, 0, 0]


def test_what_was_not_asked_for_is_refused_and_not_none():
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(rg.RegardError, match=r"entropy was not asked for.*asked: weights"):
        _ = rg.attention_detail(x, x, x, want="weights").entropy
