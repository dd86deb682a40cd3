"""Rows whose scores are all large: what is added to every score of a row changes neither its sums nor its gradients."""

import math

import pytest
import torch
from asking import HERE, LEARNING, among, ask, cut

import regard as rg
from regard import patterns as p
from regard.testing import make_qkv

LOWEST = torch.finfo(torch.float32).min
OFFSETS = [1e4, -1e4, 1e6, -1e6, 1e30, -1e30, LOWEST, -LOWEST]
EQUAL = [-1e30, 1e30, LOWEST, -LOWEST]  # scores beside them are rounded to one number
CLOSE = {"rtol": 2e-4, "atol": 2e-4}
PATTERNS = [None, "causal", "strided(3)"]


def with_offset(offset, rows=slice(1, 3), heads=4):
    bias = torch.zeros(1, heads, 13, 13)
    bias[:, :, rows] = offset
    return bias


def check_sums_of_value_gradients(q, k, v, **options):
    """The weights of a row sum to 1, so the gradients of values sum to those of the outputs, on every backend."""
    grad = torch.randn(2, 4, 13, v.shape[-1])
    expected = grad.unflatten(1, (2, 2)).sum((2, 3))
    for backend in among(LEARNING, q, k, v, **options):
        output = ask(backend, q, k, v, **options).output
        gradients = torch.autograd.grad(output, (q, k, v), grad)
        assert not any(x.isnan().any() for x in gradients), backend
        torch.testing.assert_close(gradients[2].sum(2), expected, **CLOSE, msg=backend)


@pytest.mark.each_value(pairs=[("offset", "pattern")])
@pytest.mark.parametrize("blocks", ["shipped", "small"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("offset", OFFSETS)
def test_the_gradients_of_values_sum_to_those_of_outputs_whatever_is_added_to_a_row(
    offset, pattern, blocks, monkeypatch
):
    if blocks == "small":
        cut(monkeypatch)
    options = {"pattern": pattern, "bias": with_offset(offset)}
    q, k, v = make_qkv(heads=4, kv_heads=2, q_len=13, k_len=13, requires_grad=True)
    check_sums_of_value_gradients(q, k, v, **options)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("gain", [30.0, 1000.0])
def test_the_gradients_of_values_sum_to_those_of_outputs_where_products_are_large(gain, pattern):
    q, k, v = make_qkv(heads=4, kv_heads=2, q_len=13, k_len=13)
    k = k + 20  # the products of a row are alike, and large
    q, k, v = ((x * gain).requires_grad_() for x in (q, k, v / gain))
    check_sums_of_value_gradients(q, k, v, pattern=pattern)


@pytest.mark.each_value(pairs=[("blocks", "q_len")])
@pytest.mark.parametrize("offset", EQUAL)
@pytest.mark.parametrize("blocks", ["shipped", "small"])
@pytest.mark.parametrize("q_len", [1, 13])
def test_a_bias_of_the_lowest_or_largest_number_for_every_key_gives_the_mean_of_the_values(
    offset, blocks, q_len, monkeypatch
):
    if blocks == "small":
        cut(monkeypatch)
    q, k, v = make_qkv(heads=4, kv_heads=2, q_len=q_len, k_len=13)
    bias = with_offset(offset, slice(None))[:, :, :q_len]
    mean = v.mean(2, keepdim=True).repeat_interleave(2, 1).expand(-1, -1, q_len, -1)
    expected = torch.full((2, 4, q_len), offset)
    for backend in among(HERE, q, k, v, bias=bias, want="log_sum_exp"):
        detail = ask(backend, q, k, v, bias=bias, want="log_sum_exp")
        torch.testing.assert_close(detail.output, mean, msg=backend)
        torch.testing.assert_close(detail.log_sum_exp, expected, msg=backend, rtol=1e-5, atol=0)


@pytest.mark.parametrize("pattern", [None, "strided(3)"])
def test_parts_of_different_sizes_are_merged_by_their_numbers_of_keys(pattern, monkeypatch):
    cut(monkeypatch)
    q = torch.full((1, 2, 3, 1), 1e15)  # one product for each score, so that all are rounded alike
    k = torch.full((1, 2, 131, 1), 1e9)
    v = torch.randn(1, 2, 131, 11)
    expected = ask("reference", q, k, v, pattern=pattern).output
    for backend in among(HERE, q, k, v, pattern=pattern):
        output = ask(backend, q, k, v, pattern=pattern).output
        torch.testing.assert_close(output, expected, msg=backend)


@pytest.mark.parametrize("offset", EQUAL)
def test_the_gradients_of_a_row_with_equal_weights_are_those_of_a_mean(offset):
    q, k, v = make_qkv(heads=4, kv_heads=2, q_len=13, k_len=13, requires_grad=True)
    bias = with_offset(offset, slice(None)).requires_grad_()
    grad = torch.randn(2, 4, 13, v.shape[-1])
    plain = torch.zeros_like(q, requires_grad=True)  # all its scores are 0
    output = rg.attention(plain, k, v, backend="reference")
    _, _, to_values = torch.autograd.grad(output, (plain, k, v), grad)
    spread = grad @ v.detach().repeat_interleave(2, 1).mT
    slope = (spread - spread.mean(-1, keepdim=True)) / 13
    to_queries = slope @ k.detach().repeat_interleave(2, 1) * q.shape[-1] ** -0.5
    for backend in among(LEARNING, q, k, v, bias=bias):
        output = ask(backend, q, k, v, bias=bias).output
        dq, _, dv, dbias = torch.autograd.grad(output, (q, k, v, bias), grad)
        torch.testing.assert_close(dv, to_values, msg=backend)
        torch.testing.assert_close(dq, to_queries, msg=backend)
        torch.testing.assert_close(dbias, slope.sum(0, keepdim=True), msg=backend)


@pytest.mark.parametrize("sign", [1, -1])
def test_of_two_huge_numbers_of_a_bias_the_key_with_the_larger_one_has_all_weight(sign):
    q, k, v = make_qkv(heads=4, kv_heads=2, q_len=13, k_len=13)
    bias = torch.full((1, 1, 1, 13), sign * 3.2e38)
    bias[..., 5] = sign * 3.3e38
    heavy = [5] if sign == 1 else [j for j in range(13) if j != 5]
    expected = v[:, :, heavy].mean(2, keepdim=True).repeat_interleave(2, 1).expand(-1, -1, 13, -1)
    for backend in among(HERE, q, k, v, bias=bias):
        torch.testing.assert_close(ask(backend, q, k, v, bias=bias).output, expected)


@pytest.mark.each_value(pairs=[("offset", "pattern"), ("sink", "learning")])
@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("sink", [None, 0.5])
def test_returned_weights_sum_to_1_or_1_minus_the_sink_whatever_is_added_to_a_row(
    offset, pattern, learning, sink
):
    want = ("weights", "received", "entropy", "sink", rg.top_keys(13))
    options = {"pattern": pattern, "bias": with_offset(offset), "sink": sink}
    q, k, v = make_qkv(heads=4, kv_heads=2, q_len=13, k_len=13, requires_grad=learning)
    for backend in among(HERE, q, k, v, want=want, **options):
        detail = ask(backend, q, k, v, want=want, **options)
        w = detail.weights
        shares = 1 - detail.sink
        entropy = -torch.special.xlogy(w, w).sum(-1)
        torch.testing.assert_close(w.sum(-1), shares, **CLOSE, msg=backend)
        torch.testing.assert_close(detail.top_keys.weights.sum(-1), shares, **CLOSE, msg=backend)
        torch.testing.assert_close(detail.received.sum(-1), shares.sum(-1), **CLOSE, msg=backend)
        torch.testing.assert_close(detail.entropy, entropy, **CLOSE, msg=backend)


@pytest.mark.parametrize("offset", EQUAL)
def test_gradients_of_statistics_and_second_ones_are_those_of_the_weights_of_a_far_row(offset):
    options = {"want": ("weights", "received"), "bias": torch.zeros(1, 1, 5, 7)}
    options["bias"][:, :, 1:3] = offset
    q, k, v = make_qkv(heads=2, kv_heads=1, q_len=5, k_len=7, requires_grad=True)

    def derivatives(backend):
        detail = ask(backend, q, k, v, **options)
        loss = (detail.output**2).sum() + (detail.weights**2).sum() + (detail.received**3).sum()
        first = torch.autograd.grad(loss, (q, k, v), create_graph=True)
        second = torch.autograd.grad(sum((x**2).sum() for x in first), (q, k, v))
        return *first, *second

    expected = derivatives("reference")
    for backend in among(LEARNING, q, k, v, **options):
        torch.testing.assert_close(
            derivatives(backend), expected, msg=backend, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e6])
def test_a_row_whose_scores_all_overflow_has_no_gradient_whatever_its_bias_is(offset):
    q = torch.full((1, 2, 3, 8), 1e20)
    q[:, 1] = 1e-20  # of the second head no score overflows
    k = torch.full((1, 2, 5, 8), -1e20)
    bias = torch.full((1, 1, 3, 5), offset)
    bias[..., 4] = -math.inf
    leaves = [x.requires_grad_() for x in (q, k, torch.randn(1, 2, 5, 11))]
    for backend in among(LEARNING, *leaves, bias=bias):
        output = ask(backend, *leaves, bias=bias).output
        dq, dk, dv = torch.autograd.grad(output.sum(), leaves)
        assert not any(x[:, 0].any() for x in (output, dq, dk, dv)), backend
        torch.testing.assert_close(dv[:, 1].sum(1), torch.full((1, 11), 3.0), msg=backend)


@pytest.mark.parametrize(
    "pattern",
    [
        p.ChosenKeys(torch.arange(15).view(1, 1, 3, 5)),
        p.ChosenBlocks(torch.zeros(1, 1, 1, 1, dtype=torch.int64), 16, 16),
    ],
    ids=["keys", "blocks"],
)
def test_a_row_of_chosen_keys_whose_scores_all_overflow_is_empty(pattern):
    q = torch.full((1, 2, 3, 8), 1e20)
    q[:, 1] = 1e-20  # of the second head no score overflows
    k = torch.full((1, 1, 37, 8), -1e20)
    v = torch.randn(1, 1, 37, 11)
    expected = rg.attention(q, k, v, pattern=pattern, backend="reference")
    assert not expected[:, 0].any()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    for backend in among(LEARNING, *leaves, pattern=pattern, want="log_sum_exp"):
        detail = ask(backend, *leaves, pattern=pattern, want="log_sum_exp")
        torch.testing.assert_close(detail.output, expected, msg=backend)
        assert (detail.log_sum_exp[:, 0] == -math.inf).all(), backend
        dq, dk, dv = torch.autograd.grad(detail.output.sum(), leaves)
        assert not dq[:, 0].any(), backend
        assert not any(x.isnan().any() for x in (dq, dk, dv)), backend
