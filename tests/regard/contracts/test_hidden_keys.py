"""A hidden key changes no bit of a result, even if it is NaN or Inf; NaN in a visible key shows in every backend."""

import math
from functools import partial

import pytest
import torch
from asking import LEARNING, PLAIN, among, ask, cut

import regard as rg
from regard import patterns as p
from regard.patterns.position_sets import KeySet
from regard.testing import make_qkv

FIRST_KEY = torch.arange(3).repeat_interleave(2)  # of each head
BY_HEAD = (torch.arange(11) >= FIRST_KEY[:, None])[None, :, None].expand(1, 6, 7, 11)
LATER = torch.arange(11) > torch.arange(7)[:, None]
FILLINGS = (math.nan, math.inf, -math.inf, 3e38)


@pytest.mark.parametrize("ahead", [0, 1, 3, 5])
def test_a_hidden_key_changes_no_bit_wherever_the_keys_begin_in_memory(ahead):
    """Rounding in a matrix product may depend on how far its numbers begin from a multiple of 64 bytes."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hidden = torch.arange(64) % 7 == 2
    by_keys = ~KeySet(tuple(range(j, j + 1) for j in range(2, 64, 7)))
    by_pairs = p.Where(lambda i, j: (j % 7 != 2) & (i >= 0))
    for pattern in [by_keys, by_pairs] * 4:
        q = draw(2, 3, 2, 8)
        v = draw(2, 1, 64, 8)
        k = draw(2 * 64 * 8 + ahead)[ahead:].view(2, 1, 64, 8)
        clean = rg.attention(q, k, v, pattern=pattern, backend="decode")
        k[:, :, hidden] = math.nan
        assert torch.equal(rg.attention(q, k, v, pattern=pattern, backend="decode"), clean)


@pytest.mark.parametrize("backend", PLAIN)
def test_statistics_do_not_hide_what_is_not_finite(backend):
    q, k, v = make_qkv()
    q[0, 0, 3] = math.nan
    want = ("log_sum_exp", "entropy", "received", "weights", rg.top_keys(2))
    detail = rg.attention_detail(q, k, v, pattern="causal", backend=backend, want=want)
    assert detail.log_sum_exp[0, 0, 3].isnan()
    assert detail.entropy[0, 0, 3].isnan()
    assert detail.received[0, 0, :3].isnan().all()
    assert detail.weights[0, 0, 3, :3].isnan().all()
    assert detail.top_keys.weights[0, 0, 3].isnan().all()
    assert detail.entropy[0, 1].isfinite().all()


SOME_HIDDEN = {
    "causal": ("causal", {"q_start": 4}),
    "window": (p.SlidingWindow(4), {}),
    "strided": ("causal & strided(3)", {}),
    "explicit by head": (p.Explicit(BY_HEAD), {}),
    "q_start by row": ("causal", {"q_start": torch.tensor([2, 4])}),
    "a bias that hides": (None, {"bias": torch.zeros(7, 11).masked_fill(LATER, -math.inf)}),
}


@pytest.mark.parametrize("number", range(2 * len(SOME_HIDDEN)))
def test_a_key_that_is_not_finite_reaches_only_the_queries_that_may_see_it(number, monkeypatch):
    cut(monkeypatch)
    pattern, options = [*SOME_HIDDEN.values()][number // 2]
    q, k, v = make_qkv()
    spoilt = {"k": k.clone(), "v": v.clone()}
    spoilt["kv"[number % 2]][1, 1, 6, 2] = FILLINGS[number % 3]
    detail = rg.attention_detail(q * 0, k * 0, v, pattern=pattern, want="weights", **options)
    sees = torch.zeros(2, 6, 7, dtype=torch.bool)
    sees[1, 2:4] = detail.weights[1, 2:4, :, 6] > 0  # heads that read key/value head 1
    assert sees.any()
    backends = among(PLAIN, q, k, v, pattern=pattern, **options)
    assert len(backends) >= 2
    for backend in backends:
        clean = ask(backend, q, k, v, pattern=pattern, **options).output
        output = ask(backend, q, spoilt["k"], spoilt["v"], pattern=pattern, **options).output
        assert not output[sees].isfinite().all(-1).any()
        torch.testing.assert_close(output[~sees], clean[~sees])


# But tiled, which computes lattices.
@pytest.mark.parametrize("backend", [name for name in LEARNING if name != "tiled"])
def test_what_uses_no_query_that_sees_such_a_key_has_its_gradients(backend):
    q, k, v = make_qkv(heads=2, kv_heads=1)
    v[0, 0, 9] = math.nan
    leaves = [x.requires_grad_() for x in (q, k, v)]
    want = ("log_sum_exp", "entropy")
    detail = ask(backend, *leaves, pattern=p.SlidingWindow(4), want=want)
    (detail.output[:, :, :2].sum() + detail.entropy[:, :, :2].sum()).backward()
    assert all(x.grad.isfinite().all() for x in leaves)
    detail = ask(backend, *leaves, pattern=p.SlidingWindow(4), want=want)
    detail.output.sum().backward()
    assert detail.output[0, :, -1].isnan().all()
    assert leaves[0].grad[0, :, -1].isnan().all()
    assert leaves[0].grad[1].isfinite().all()


def test_half_types_and_mechanisms_keep_it_from_earlier_queries():
    for dtype in (torch.float16, torch.bfloat16):
        q, k, v = make_qkv(q_len=11, k_len=11, dtype=dtype)
        k[:, :, 7] = math.nan
        assert rg.attention(q, k, v, pattern="causal")[:, :, :7].isfinite().all()
    q, k, v = make_qkv(q_len=11, k_len=11)
    v[:, :, 7] = math.inf
    for mechanism in (rg.mechanisms.LinearTransformer(), rg.mechanisms.Performer(features=16)):
        output = rg.attention(q, k, v, pattern="causal", mechanism=mechanism)
        assert output[:, :, :7].isfinite().all()
        assert output[:, :, 7:].isnan().all()
