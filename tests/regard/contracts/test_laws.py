"""Metamorphic laws, for random sizes and pattern expressions: what must follow when a call is changed in a known way.

Every law holds for every backend that computes the call. The grid checks which calls a backend computes.
"""

from __future__ import annotations

import math

import law_patterns as laws
import pytest
import torch
from asking import HERE, PLAIN, ask, computes
from hypothesis import assume, given
from hypothesis import strategies as st
from law_examples import law
from small_blocks import cut

import regard as rg
from regard import patterns as p
from regard.testing import make_qkv

EXACT = {"rtol": 1e-11, "atol": 1e-11}
backends = pytest.mark.parametrize("backend", HERE)
several = law(8)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    cut(monkeypatch)


def qkv(kv_heads: int, q_len: int, k_len: int, seed: int = 0, **more) -> list[torch.Tensor]:
    sizes = {"heads": laws.HEADS, "kv_heads": kv_heads, "q_len": q_len, "k_len": k_len, "v_dim": 4, "seed": seed}
    return list(make_qkv(**sizes, **{"dtype": torch.float64, **more}))


def attend(backend: str, q, k, v, **options) -> torch.Tensor:
    """The backend's output; a call that it refuses is no example of a law about it."""
    assume(computes(backend, q, k, v, **options))
    return ask(backend, q, k, v, **options).output


def learning(backend: str, q, k, v, **options) -> list[torch.Tensor]:
    """The tensors as leaves, which need a gradient if the backend has any."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    return leaves if computes(backend, *leaves, **options) else [x.detach() for x in leaves]


def same(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, **EXACT)


@backends
@several
@given(laws.kv_heads, laws.lengths, laws.anything, st.data())
def test_an_edit_of_the_future_changes_no_bit_of_the_past(backend, kv_heads, length, pattern, data):
    now = data.draw(st.integers(0, length - 1))
    q, k, v = qkv(kv_heads, length, length, seed=length, dtype=torch.float32)
    before = attend(backend, q, k, v, pattern=p.Causal() & pattern)
    for x in (q, k, v):
        x[:, :, now + 1 :] = torch.randn_like(x[:, :, now + 1 :]) * 50
    after = attend(backend, q, k, v, pattern=p.Causal() & pattern)
    assert torch.equal(after[:, :, : now + 1], before[:, :, : now + 1])


@backends
@several
@given(laws.kv_heads, laws.lengths, laws.lengths, laws.anything)
def test_a_window_as_wide_as_everything_is_no_window(backend, kv_heads, q_len, k_len, pattern):
    q, k, v = qkv(kv_heads, q_len, k_len)
    wide = p.SlidingWindow(2 * (q_len + k_len))
    same(attend(backend, q, k, v, pattern=pattern & wide), attend("reference", q, k, v, pattern=pattern))
    if computes(backend, q, k, v, pattern=wide | pattern):
        same(attend(backend, q, k, v, pattern=wide | pattern), attend("reference", q, k, v))


@backends
@several
@given(st.sampled_from([2, 1]), laws.lengths, laws.lengths, laws.anything)
def test_grouped_heads_equal_repeated_heads(backend, kv_heads, q_len, k_len, pattern):
    q, k, v = qkv(kv_heads, q_len, k_len, seed=1)
    repeated = [x.repeat_interleave(laws.HEADS // kv_heads, 1) for x in (k, v)]
    one = attend(backend, q, k, v, pattern=pattern)
    same(attend(backend, q, *repeated, pattern=pattern), one)


@backends
@several
@given(laws.kv_heads, laws.lengths, st.integers(2, laws.LONGEST), laws.anything, st.data())
def test_merged_pieces_equal_the_whole(backend, kv_heads, q_len, k_len, pattern, data):
    q, k, v = qkv(kv_heads, q_len, k_len, seed=2)
    cut_at = data.draw(st.integers(1, k_len - 1))
    pieces = []
    for part in (p.KeySpan(0, cut_at), p.KeySpan(cut_at)):
        assume(computes(backend, q, k, v, pattern=pattern & part, want="log_sum_exp"))
        detail = ask(backend, q, k, v, pattern=pattern & part, want="log_sum_exp")
        pieces.append((detail.output, detail.log_sum_exp))
    whole = ask("reference", q, k, v, pattern=pattern, want="log_sum_exp")
    output, log_sum_exp = rg.merge_attention(pieces)
    same(output, whole.output)
    same(log_sum_exp, whole.log_sum_exp)


@pytest.mark.parametrize("backend", PLAIN)
@several
@given(laws.kv_heads, st.lists(st.integers(1, 7), min_size=1, max_size=4), laws.of_distance, st.booleans())
def test_packed_texts_equal_texts_apart(backend, kv_heads, sizes, pattern, by_row):
    """Two batch rows, packed in the same or in opposite order."""
    orders = [list(enumerate(sizes)), list(enumerate(sizes))[:: -1 if by_row else 1]]
    ids = torch.tensor([[text for text, size in order for _ in range(size)] for order in orders])
    q, k, v = qkv(kv_heads, ids.shape[1], ids.shape[1], seed=3)
    packed = attend(backend, q, k, v, pattern=p.SameDocument(ids if by_row else ids[0]) & pattern)
    for row, order in enumerate(orders):
        start = 0
        for _, size in order:
            alone = [x[row : row + 1, :, start : start + size] for x in (q, k, v)]
            same(packed[row : row + 1, :, start : start + size], attend("reference", *alone, pattern=pattern))
            start += size


@backends
@several
@given(laws.kv_heads, laws.lengths, st.integers(2, laws.LONGEST), laws.without_length, st.data())
def test_masked_keys_equal_removed_keys(backend, kv_heads, q_len, k_len, pattern, data):
    q, k, v = qkv(kv_heads, q_len, k_len, seed=4)
    live = data.draw(st.integers(1, k_len))
    masked = attend(backend, q, k, v, pattern=pattern & p.KeySpan(0, live))
    removed = k[:, :, :live], v[:, :, :live]
    same(masked, attend("reference", q, *removed, pattern=pattern, q_start=k_len - q_len))


@backends
@several
@given(laws.kv_heads, laws.lengths, st.lists(st.booleans(), min_size=1, max_size=laws.LONGEST))
def test_keys_masked_one_by_one_equal_removed_keys(backend, kv_heads, q_len, live):
    q, k, v = qkv(kv_heads, q_len, len(live), seed=5)
    kept = torch.tensor(live)
    removed = attend("reference", q, k[:, :, kept], v[:, :, kept])
    runs = [p.KeySpan(at, at + 1) for at, one in enumerate(live) if one]
    structured = p.Either(tuple(runs)) if len(runs) > 1 else runs[0] if runs else p.KeySpan(0, 0)
    for pattern in (p.Explicit(kept.expand(q_len, -1)), structured, ~~structured & p.SlidingWindow(99)):
        if computes(backend, q, k, v, pattern=pattern):
            same(ask(backend, q, k, v, pattern=pattern).output, removed)


@backends
@several
@given(laws.kv_heads, laws.lengths, laws.lengths, laws.anything)
def test_values_enter_linearly_and_a_shift_of_all_keys_means_nothing(backend, kv_heads, q_len, k_len, pattern):
    q, k, v = qkv(kv_heads, q_len, k_len, seed=6)

    def call(k, v):
        return attend(backend, q, k, v, pattern=pattern)

    same(call(k, 3 * v + k[..., :4]), 3 * call(k, v) + call(k, k[..., :4]))
    seen = pattern.dense(q_len, k_len).any(-1)  # a row that sees a key has weights that add up to 1
    ones = call(k + torch.randn(5, dtype=torch.float64), torch.ones_like(v))
    same(ones, seen[..., None].expand(ones.shape).double())


@backends
@several
@given(laws.kv_heads, laws.lengths, laws.lengths, laws.alike, st.permutations(range(laws.HEADS)))
def test_batch_rows_and_heads_may_change_places(backend, kv_heads, q_len, k_len, pattern, order):
    q, k, v = qkv(kv_heads, q_len, k_len, seed=7)
    one = attend(backend, q, k, v, pattern=pattern)
    same(attend(backend, *(x.flip(0) for x in (q, k, v)), pattern=pattern), one.flip(0))
    group = laws.HEADS // kv_heads
    kv_order = [head // group for head in order]
    same(attend(backend, q[:, order], k[:, kv_order], v[:, kv_order], pattern=pattern), one[:, order])


@backends
@several
@given(laws.kv_heads, laws.lengths, laws.lengths, laws.without_length, st.integers(-5, 5))
def test_batch_rows_do_not_meet_though_each_starts_elsewhere(backend, kv_heads, q_len, k_len, pattern, shift):
    q, k, v = qkv(kv_heads, q_len, k_len, seed=8)
    starts = torch.tensor([shift, 2])
    by_tensor = backend if computes(backend, q, k, v, pattern=pattern, q_start=starts) else "reference"
    together = ask(by_tensor, q, k, v, pattern=pattern, q_start=starts).output
    for row in range(2):
        alone = [x[row : row + 1] for x in (q, k, v)]
        same(together[row : row + 1], attend(backend, *alone, pattern=pattern, q_start=int(starts[row])))


@backends
@several
@given(laws.kv_heads, laws.lengths, laws.lengths, laws.of_distance, st.integers(-6, 12), st.integers(1, 7))
def test_moving_queries_and_keys_together_means_nothing(backend, kv_heads, q_len, k_len, pattern, start, by):
    q, k, v = qkv(kv_heads, q_len, k_len, seed=9)
    moved = [torch.cat([torch.randn_like(x[:, :, :1]).expand(-1, -1, by, -1), x], 2) for x in (k, v)]
    here = attend("reference", q, k, v, pattern=pattern, q_start=start)
    same(attend(backend, q, *moved, pattern=pattern & p.KeySpan(by), q_start=start + by), here)


def hidden_keys(pattern: p.Pattern, q_len: int, k_len: int, kv_heads: int) -> torch.Tensor:
    """Keys that no query may look at, (2, kv_heads, k_len)."""
    seen = pattern.dense(q_len, k_len)
    seen = seen.expand(2, laws.HEADS, q_len, k_len).any(2)
    return ~seen.unflatten(1, (kv_heads, -1)).any(2)


@backends
@several
@given(laws.kv_heads, laws.lengths, laws.lengths, laws.anything, st.sampled_from([math.nan, math.inf, -math.inf]))
def test_a_key_that_no_query_sees_changes_no_bit(backend, kv_heads, q_len, k_len, pattern, filling):
    hidden = hidden_keys(pattern, q_len, k_len, kv_heads)
    assume(hidden.any())
    found = []
    for fill in (0.0, filling):
        q, k, v = qkv(kv_heads, q_len, k_len, seed=10, dtype=torch.float32)
        k, v = (x.masked_fill(hidden[..., None], fill) for x in (k, v))
        tensors = learning(backend, q, k, v, pattern=pattern)
        output = attend(backend, *tensors, pattern=pattern)
        if output.requires_grad:
            output.sum().backward()
        found.append([output, *(x.grad for x in tensors if x.grad is not None)])
    for clean, filled in zip(*found, strict=True):
        assert torch.equal(clean, filled)


@backends
@several
@given(laws.kv_heads, laws.lengths, laws.lengths, laws.anything, st.integers(-9, 9))
def test_a_row_without_keys_is_zeros_and_sends_zeros(backend, kv_heads, q_len, k_len, pattern, start):
    seen = pattern.dense(q_len, k_len, q_start=start).any(-1).expand(2, laws.HEADS, q_len)
    assume(not seen.all())
    q, k, v = qkv(kv_heads, q_len, k_len, seed=11)
    q = q.masked_fill(~seen[..., None], math.nan)
    q, k, v = learning(backend, q, k, v, pattern=pattern, q_start=start)
    assume(computes(backend, q, k, v, pattern=pattern, q_start=start))
    detail = ask(backend, q, k, v, pattern=pattern, q_start=start, want="log_sum_exp")
    assert torch.equal(detail.log_sum_exp == -math.inf, ~seen)
    assert (detail.output[~seen] == 0).all()
    assert detail.output.isfinite().all()
    if q.requires_grad:
        detail.output.sum().backward()
        assert (q.grad[~seen] == 0).all()
        assert all(x.grad.isfinite().all() for x in (q, k, v))


@backends
@several
@given(laws.kv_heads, st.lists(st.integers(1, 6), min_size=1, max_size=5), laws.without_length)
def test_continuing_equals_computing_at_once(backend, kv_heads, steps, pattern):
    length = sum(steps)
    q, k, v = qkv(kv_heads, length, length, seed=12)
    pattern = p.Causal() & pattern
    whole = ask("reference", q, k, v, pattern=pattern).output
    at = 0
    computed = 0
    for step in steps:
        new, keys = slice(at, at + step), slice(0, at + step)
        call = q[:, :, new], k[:, :, keys], v[:, :, keys]
        if computes(backend, *call, pattern=pattern, q_start=at):
            same(ask(backend, *call, pattern=pattern, q_start=at).output, whole[:, :, new])
            computed += 1
        at += step
    assume(computed)
